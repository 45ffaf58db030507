"""What launches and requests showed, kept in the journal over restarts, and what it teaches.

Bounded in memory as the journal's tables are on disk. Samples in, a frozen Learned out.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic, time

import msgspec
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.ladder import Rung, RungKey
from planners.lessons.learning import learned_from, rate_sample
from planners.lessons.samples import NOTHING_LEARNED, LaunchKey, LaunchSample, Learned, RateSample
from planners.lessons.usage import Usage
from planners.model import ModelId, ModelInfo
from planners.plan import DeviceBytes, InstanceId, LaunchPlan
from planners.view import InstanceState, Observed
from supervisor.records.journal import Journal
from supervisor.records.journal_file import LAUNCHES, PER_KEY, RATES, Cell, Row

MAX_LAUNCHES = 1_000  # samples held, of the 5,000 that the journal keeps
MAX_KEYS = 128  # whose rates are held
LEARN_S = 5.0  # cadence at which new rates are taken into plans

_PARTS = msgspec.json.Decoder(tuple[DeviceBytes, ...])


class LaunchHistory:
    """Samples, and what they teach. All of it runs on the loop; the journal's thread writes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._launches: dict[str, LaunchSample] = {}
        self._rates: dict[LaunchKey, deque[RateSample]] = {}
        self._learned = NOTHING_LEARNED
        self._learned_s = monotonic()
        self._is_stale = False
        self._pending: _Pending | None = None

    async def load(self) -> None:
        """Take in what earlier daemons kept."""
        for row in await self._journal.rows(LAUNCHES, limit=MAX_LAUNCHES):
            if (launch := _launch_sample(row)) is not None:
                self._launches[launch.launch] = launch
        for row in await self._journal.rows(RATES, limit=MAX_KEYS * PER_KEY):
            if (rate := _rate_sample(row)) is not None:
                self._hold(rate)
        self._learn()

    def launches(self) -> tuple[LaunchSample, ...]:
        """All that is held, the oldest first."""
        return tuple(self._launches.values())

    @property
    def learned(self) -> Learned:
        """What all samples teach; new rates count within LEARN_S."""
        if self._is_stale and monotonic() - self._learned_s >= LEARN_S:
            self._learn()
        return self._learned

    def launched(self, sample: LaunchSample) -> None:
        """Keep a launch, or what became of one."""
        self._launches[sample.launch] = sample
        while len(self._launches) > MAX_LAUNCHES:
            del self._launches[next(iter(self._launches))]
        self._journal.write(LAUNCHES, _launch_row(sample))
        self._learn()

    def served(
        self,
        usage: Usage,
        *,
        hardware: HardwareProfile,
        model: ModelInfo,
        plan: LaunchPlan,
    ) -> None:
        """Keep what a request that had its child to itself showed of its speed."""
        sample = rate_sample(usage, at=time(), hardware=hardware, model=model, plan=plan)
        if sample is not None:
            self._hold(sample)
            self._journal.write(RATES, _rate_row(sample))
            self._is_stale = True

    def began(
        self,
        instance_id: InstanceId,
        profile: HardwareProfile | None,
        running: Iterable[Observed],
    ) -> None:
        """Note what devices have free before a launch, where nothing else is under way."""
        others = _at_rest(running, but=instance_id)
        self._pending = None
        if profile is not None and others is not None:
            self._pending = _Pending(instance_id, _free_bytes(profile), others)

    def saw(self, profile: HardwareProfile, running: Iterable[Observed]) -> None:
        """Tell from a reading after a launch what its driver took beyond its buffers.

        Believed where nothing else of ours began or ended in between; strangers' processes are what
        medians are for.
        """
        pending, running = self._pending, tuple(running)
        ours = [seen for seen in running if pending and seen.instance_id == pending.instance_id]
        if pending is None or not ours or ours[0].state is not InstanceState.READY:
            return
        self._pending = None
        newest = next(reversed(self._launches.values()), None)
        if newest is None or _at_rest(running, but=pending.instance_id) != pending.others:
            return
        free = _free_bytes(profile)
        measured = tuple(_with_driver(part, pending.free_bytes, free) for part in newest.measured)
        if newest.model_id == ours[0].model_id and measured != newest.measured:
            self.launched(replace(newest, measured=measured))

    def rung_of(self, plan: LaunchPlan) -> Rung:
        """What launches of the plan's model and engine must do without."""
        return self._learned.rungs.get(RungKey(plan.model_digest, plan.engine_id), Rung())

    def knows(self, device: DeviceId) -> bool:
        """True while something is held of a launch on the device."""
        keys = (*self._rates, *(one.key for one in self._launches.values()))
        return any(device in _places(key) for key in keys)

    async def forget(
        self, *, model_id: ModelId | None = None, device: DeviceId | None = None
    ) -> tuple[int, int]:
        """Drop the samples of a model, of a device, or all; how many launches and rates went."""

        def is_meant(one: LaunchSample | RateSample) -> bool:
            if model_id is not None:
                return one.model_id == model_id
            return device is None or device in _places(one.key)

        launches = [one for one in self._launches.values() if is_meant(one)]
        rates = [one for some in self._rates.values() for one in some if is_meant(one)]
        places = {one.key.devices for one in launches} | {one.key.devices for one in rates}
        for launch in launches:
            del self._launches[launch.launch]
        kept = [one for some in self._rates.values() for one in some if not is_meant(one)]
        self._rates.clear()
        for rate in kept:
            self._hold(rate)
        self._learn()
        await self._delete(model_id, places, device)
        return len(launches), len(rates)

    async def _delete(
        self, model_id: ModelId | None, places: Iterable[str], device: DeviceId | None
    ) -> None:
        for table in (LAUNCHES, RATES):
            if model_id is not None:
                await self._journal.delete(table, model_id=model_id)
            elif device is None:
                await self._journal.delete(table)
            else:
                for devices in places:
                    await self._journal.delete(table, devices=devices)

    def _hold(self, sample: RateSample) -> None:
        some = self._rates.pop(sample.key, None)
        some = deque(maxlen=PER_KEY) if some is None else some
        some.append(sample)
        self._rates[sample.key] = some  # the last one used is the last one to go
        while len(self._rates) > MAX_KEYS:
            del self._rates[next(iter(self._rates))]

    def _learn(self) -> None:
        # Some 5,000 samples at most: 10 ms, at every launch and every LEARN_S under load.
        rates = [sample for some in self._rates.values() for sample in some]
        self._learned = learned_from(self._launches.values(), rates)
        self._learned_s, self._is_stale = monotonic(), False


def _places(key: LaunchKey) -> list[str]:
    return (key.devices or HOST).split(",")


class _Pending(msgspec.Struct, frozen=True):
    """The machine just before a launch."""

    instance_id: InstanceId
    free_bytes: Mapping[DeviceId, int]
    others: frozenset[int]
    """Pids of our other processes."""


def _at_rest(running: Iterable[Observed], *, but: InstanceId) -> frozenset[int] | None:
    """The pids of all others; None where one of them comes or goes."""
    others = [seen for seen in running if seen.instance_id != but]
    if any(seen.state is not InstanceState.READY for seen in others if not seen.state.is_down):
        return None
    return frozenset(seen.pid for seen in others if seen.pid is not None)


def _free_bytes(profile: HardwareProfile) -> dict[DeviceId, int]:
    """Of devices with a memory of their own, whose free bytes somebody tells."""
    return {
        device.device_id: device.free_bytes
        for device in profile.devices
        if device.free_bytes is not None and not device.shares_host
    }


def _with_driver(
    part: DeviceBytes, before: Mapping[DeviceId, int], after: Mapping[DeviceId, int]
) -> DeviceBytes:
    if part.device_id not in before or part.device_id not in after:
        return part
    taken = before[part.device_id] - after[part.device_id]
    return replace(part, overhead_bytes=max(0, taken - part.buffer_bytes))


def anonymous_bytes(pid: int) -> int | None:
    """Memory of a process that no file backs, as resident now; None where nobody tells."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def with_process(
    measured: tuple[DeviceBytes, ...], taken: int | None, *, weights: int
) -> tuple[DeviceBytes, ...]:
    """`measured` with what a process of `taken` bytes has in host memory beyond its buffers.

    `weights`: bytes of them in memory of its own; others are pages of the model's file, which
    `taken` leaves out.
    """
    if taken is None:
        return measured
    return tuple(
        replace(part, overhead_bytes=max(0, taken - part.kv_bytes - part.compute_bytes - weights))
        if part.device_id == HOST
        else part
        for part in measured
    )


def _key_cells(key: LaunchKey) -> dict[str, Cell]:
    return {
        "engine_id": key.engine_id,
        "model_digest": key.model_digest,
        "devices": key.devices,
        "flags": key.flags,
    }


def _launch_row(sample: LaunchSample) -> Row:
    return {
        "launch": sample.launch,
        "at": sample.at,
        "model_id": sample.model_id,
        **_key_cells(sample.key),
        "context": sample.context,
        "rung": sample.rung,
        "outcome": sample.outcome,
        "cause": sample.cause,
        "load_s": sample.load_s,
        "predicted": msgspec.json.encode(sample.predicted).decode(),
        "measured": msgspec.json.encode(sample.measured).decode(),
    }


def _rate_row(sample: RateSample) -> Row:
    return {
        "at": sample.at,
        "model_id": sample.model_id,
        **_key_cells(sample.key),
        "decode_tokens_per_s": sample.decode_tokens_per_s,
        "prompt_tokens_per_s": sample.prompt_tokens_per_s,
        "owner": sample.owner,
        "bytes_per_s": sample.bytes_per_s,
        "flops": sample.flops,
    }


class _Key(msgspec.Struct):
    engine_id: str
    model_digest: str
    devices: str
    flags: str


class _LaunchRow(_Key):
    launch: str
    at: float
    model_id: str
    context: int
    rung: str | None
    outcome: str
    cause: str | None
    load_s: float | None
    predicted: str
    measured: str


class _RateRow(_Key):
    at: float
    model_id: str
    decode_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    owner: str | None
    bytes_per_s: float | None
    flops: float | None


def _key(row: _Key) -> LaunchKey:
    return LaunchKey(row.engine_id, row.model_digest, row.devices, row.flags)


def _launch_sample(row: Row) -> LaunchSample | None:
    """None for a row that somebody else wrote."""
    try:
        told = msgspec.convert(row, _LaunchRow)
        predicted, measured = _PARTS.decode(told.predicted), _PARTS.decode(told.measured)
    except msgspec.MsgspecError:
        return None
    return LaunchSample(
        told.launch, told.at, ModelId(told.model_id), _key(told), told.context, told.outcome,
        predicted, measured, told.load_s, told.cause, told.rung,
    )  # fmt: skip


def _rate_sample(row: Row) -> RateSample | None:
    try:
        told = msgspec.convert(row, _RateRow)
    except msgspec.MsgspecError:
        return None
    return RateSample(
        told.at, ModelId(told.model_id), _key(told), told.decode_tokens_per_s,
        told.prompt_tokens_per_s, None if told.owner is None else DeviceId(told.owner),
        told.bytes_per_s, told.flops,
    )  # fmt: skip
