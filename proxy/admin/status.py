"""What `inferenceosctl status` shows: the daemon, its instances, devices and engines.

JSON knows no infinity, so "for ever" is a field of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from planners.backends import Engine, RejectedEngine
from planners.hardware import HOST, Device, DeviceId, HardwareProfile, Note
from planners.instances.cards import identities
from planners.lessons.samples import NOTHING_LEARNED, Learned, Lesson, key_of
from planners.model import BrokenFile
from planners.plan import DeviceBytes, LaunchPlan
from planners.reasons import Reason
from planners.view import LineSeen, Observed
from proxy.admin.moves import MigrationReport, YieldReport

CALLERS_SHOWN = 20  # of a line


class MemoryReport(Struct, frozen=True):
    """What one instance takes on one device."""

    device: str
    predicted_bytes: int
    """Of its buffers: weights, KV cache, compute."""
    measured_bytes: int | None
    """Of the same buffers; None until the engine has told."""
    reserved_bytes: int
    """For what no buffer shows: the process, the driver's context, a full prompt cache."""
    overhead_bytes: int | None = None
    """Of that, taken as the model was loaded; None where nobody told."""


class LayersReport(Struct, frozen=True):
    """The layers of one instance on one device, output layer included."""

    device: str
    engine_name: str
    layers: int


class SpeedReport(Struct, frozen=True):
    """Tokens/s and seconds of one launch: as planned, and as its like were measured here."""

    predicted_decode_tokens_per_s: float | None
    """All slots together, each of them busy."""
    predicted_prompt_tokens_per_s: float | None
    median_decode_tokens_per_s: float | None
    """Of requests alone in their process; None until there are enough."""
    median_prompt_tokens_per_s: float | None
    requests: int
    """That the medians are of."""
    median_load_s: float | None
    launches: int
    """That it is of."""


class InstanceReport(Struct, frozen=True):
    """One llama-server process, or the wish for one."""

    instance: str
    model: str
    state: str
    pid: int | None
    backend: str
    engine: str
    devices: tuple[LayersReport, ...]
    context: int
    slots: int
    memory: tuple[MemoryReport, ...]
    running: int
    waiting: int
    prompt_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    stays_forever: bool
    expires_at: float | None
    """UTC seconds; None while it is busy, and where it stays for ever."""
    loaded_at: float | None
    load_s: float | None
    load_progress: float | None
    restarts: int
    cause: str | None
    """Why it last ended, where that was not wanted."""
    retry_in_s: float | None
    plan: str
    """Digest of its launch plan."""
    reasons: tuple[Reason, ...]
    speed: SpeedReport


class CallerReport(Struct, frozen=True):
    """One caller in a model's line."""

    caller: str
    priority: str
    waiting: int
    place: int
    """Of its first request; 1 is the next to be served."""


class LineReport(Struct, frozen=True):
    """The requests that wait for one model."""

    model: str
    waiting: int
    oldest_wait_s: float
    callers: tuple[CallerReport, ...]
    """Those that are served next, CALLERS_SHOWN at most."""


class DeviceReport(Struct, frozen=True):
    """One device, or the host's memory, as `host`."""

    device: str
    name: str
    kind: str
    engine_names: tuple[str, ...]
    total_bytes: int | None
    free_bytes: int | None
    ours_bytes: int
    """What our processes take of it: measured where the engine told, else predicted."""
    limit_bytes: int | None
    is_used: bool


class EngineReport(Struct, frozen=True):
    """A llama-server binary that was tried."""

    path: str
    source: str
    backend: str | None
    version: str | None
    refused: str | None
    """Why it is not used; None for one that is."""


class LockReport(Struct, frozen=True):
    """What locks the public port."""

    keys: int
    """API keys in force, expired ones included."""
    keys_file: str
    is_open: bool
    """True where other machines need no key, by --insecure."""
    tls_expires_at: float | None
    """UTC seconds at which the certificate ends; None for plain HTTP."""
    mistake: str | None = None
    """Why what the files hold now is not in force."""


class DaemonReport(Struct, frozen=True):
    """The daemon itself."""

    version: str
    pid: int
    started_at: float
    """UTC seconds."""
    listen: str
    config_file: str | None
    state_dir: str
    has_tried_engines: bool = True
    """False while llama-servers are still being tried, just after the start."""
    lock: LockReport | None = None
    """None of a daemon that knows of none."""


class StatusReport(Struct, frozen=True):
    """Everything `inferenceosctl status` shows."""

    daemon: DaemonReport
    instances: tuple[InstanceReport, ...]
    devices: tuple[DeviceReport, ...]
    engines: tuple[EngineReport, ...]
    broken: tuple[BrokenFile, ...]
    notes: tuple[Note, ...]
    state: str = "ok"
    """"degraded" while a wanted device is missing."""
    degraded: tuple[str, ...] = ()
    """Each missing device, and why."""
    resumed_at: float | None = None
    """UTC seconds at which the machine last woke from sleep while the daemon ran."""
    lines: tuple[LineReport, ...] = ()
    """Where somebody waits."""
    migrations: tuple[MigrationReport, ...] = ()
    """Under way."""
    yields: tuple[YieldReport, ...] = ()
    """Memory that others have."""


def status_report(
    daemon: DaemonReport,
    *,
    instances: Iterable[Observed],
    hardware: HardwareProfile | None,
    engines: Iterable[Engine],
    rejected: Iterable[RejectedEngine],
    broken: tuple[BrokenFile, ...],
    now_s: float,
    learned: Learned = NOTHING_LEARNED,
    resumed_at: float | None = None,
    lines: Iterable[LineSeen] = (),
    migrations: tuple[MigrationReport, ...] = (),
    yields: tuple[YieldReport, ...] = (),
) -> StatusReport:
    """All of it at one moment; `now_s` is monotonic, `hardware` None until it was probed."""
    absent = () if hardware is None else hardware.absent
    observed = tuple(instances)
    ours = _ours_bytes(observed, () if hardware is None else hardware.devices)
    return StatusReport(
        daemon=daemon,
        instances=tuple(instance_report(one, now_s=now_s, learned=learned) for one in observed),
        devices=() if hardware is None else _device_reports(hardware, ours),
        engines=(
            *(EngineReport(e.path, e.source, e.backend, e.version, None) for e in engines),
            *(EngineReport(r.path, r.source, None, None, r.reason) for r in rejected),
        ),
        broken=broken,
        notes=() if hardware is None else hardware.notes,
        state="degraded" if absent else "ok",
        degraded=tuple(f"{each.name} is missing: {each.reason}" for each in absent),
        resumed_at=resumed_at,
        lines=tuple(map(_line_report, lines)),
        yields=yields,
        migrations=migrations,
    )


def _line_report(line: LineSeen) -> LineReport:
    callers = (
        CallerReport(one.caller, one.priority.value, one.waiting, one.place)
        for one in line.callers[:CALLERS_SHOWN]
    )
    return LineReport(line.model_id, line.waiting, round(line.oldest_wait_s, 3), tuple(callers))


def instance_report(
    one: Observed, *, now_s: float, learned: Learned = NOTHING_LEARNED
) -> InstanceReport:
    """One instance, for people and scripts."""
    plan = one.plan
    stays_forever = one.expires_at == math.inf or math.isinf(one.keep_alive_s)
    retry_in_s = None if one.retry_at_s is None else max(0.0, one.retry_at_s - now_s)
    return InstanceReport(
        instance=one.instance_id,
        model=one.model_id,
        state=one.state.value,
        pid=one.pid,
        backend=plan.backend,
        engine=plan.engine_id,
        devices=tuple(LayersReport(*share) for share in plan.devices),
        context=plan.context,
        slots=plan.n_parallel,
        memory=_memory(plan.predicted, one.measured),
        running=one.running,
        waiting=one.waiting,
        prompt_tokens_per_s=one.prompt_tokens_per_s,
        decode_tokens_per_s=one.decode_tokens_per_s,
        stays_forever=stays_forever,
        expires_at=None if stays_forever else one.expires_at,
        loaded_at=one.loaded_at,
        load_s=one.load_s,
        load_progress=one.load_progress,
        restarts=one.restarts,
        cause=None if one.cause is None else one.cause.summary,
        retry_in_s=None if retry_in_s == math.inf else retry_in_s,
        plan=plan.digest,
        reasons=plan.reasons,
        speed=_speed(plan, learned.lessons.get(key_of(plan), Lesson())),
    )


def _speed(plan: LaunchPlan, lesson: Lesson) -> SpeedReport:
    return SpeedReport(
        predicted_decode_tokens_per_s=plan.predicted_decode_tokens_per_s,
        predicted_prompt_tokens_per_s=plan.predicted_prompt_tokens_per_s,
        median_decode_tokens_per_s=lesson.decode_tokens_per_s,
        median_prompt_tokens_per_s=lesson.prompt_tokens_per_s,
        requests=lesson.requests,
        median_load_s=lesson.load_s,
        launches=lesson.launches,
    )


def _memory(
    predicted: Iterable[DeviceBytes], measured: Iterable[DeviceBytes]
) -> tuple[MemoryReport, ...]:
    told = {part.device_id: part.buffer_bytes for part in measured}
    expected = {part.device_id: part.buffer_bytes for part in predicted}
    reserved = {part.device_id: part.overhead_bytes for part in predicted}
    taken = {part.device_id: part.overhead_bytes or None for part in measured}
    return tuple(
        MemoryReport(
            device,
            expected.get(device, 0),
            told.get(device),
            reserved.get(device, 0),
            taken.get(device),
        )
        for device in dict.fromkeys([*expected, *told])
    )


def _ours_bytes(instances: Iterable[Observed], devices: Sequence[Device]) -> dict[str, int]:
    """Bytes that living processes take, by device as it is known now."""
    ours: dict[str, int] = {}
    for one in (one for one in instances if one.pid is not None):
        now = identities(one.plan, devices)
        for part in _memory(one.plan.predicted, one.measured):
            taken = part.predicted_bytes if part.measured_bytes is None else part.measured_bytes
            place = now.get(DeviceId(part.device), part.device)
            ours[place] = ours.get(place, 0) + taken
    return ours


def _device_reports(hardware: HardwareProfile, ours: Mapping[str, int]) -> tuple[DeviceReport, ...]:
    host = hardware.host
    return (
        *(_device_report(device, ours.get(device.device_id, 0)) for device in hardware.devices),
        DeviceReport(
            device=HOST,
            name=host.cpu_name,
            kind="host",
            engine_names=(),
            total_bytes=host.total_bytes,
            free_bytes=host.available_bytes,
            ours_bytes=ours.get(HOST, 0),
            limit_bytes=host.limit_bytes,
            is_used=True,
        ),
    )


def _device_report(device: Device, ours_bytes: int) -> DeviceReport:
    return DeviceReport(
        device=device.device_id,
        name=device.name,
        kind=device.kind.value,
        engine_names=tuple(dict.fromkeys(name for _, name in device.engine_names)),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        ours_bytes=ours_bytes,
        limit_bytes=device.limit_bytes,
        is_used=device.use,
    )
