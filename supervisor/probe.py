"""What the machine is right now: sources read under deadlines, joined to cards, ruled by config.

A source that hangs, is absent or does not match its driver yields a note, never an exception and
never a wait.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from planners.argv import child_env
from planners.backends import Engine, EngineDevice
from planners.hardware import (
    Absence,
    Device,
    DeviceId,
    HardwareProfile,
    Host,
    Note,
    NoteKind,
    Storage,
)
from planners.instances.absence import absences, known_again, remembered
from planners.settings import PlacementRules
from supervisor.devices.amd import AmdSource
from supervisor.devices.apple import AppleSource
from supervisor.devices.engine import EngineSource
from supervisor.devices.host import HostSource
from supervisor.devices.identity import devices_of, vendor_of
from supervisor.devices.kernel_files import ROOT
from supervisor.devices.nvidia_presence import NvidiaIfThere
from supervisor.devices.rpc import RpcServers
from supervisor.devices.rules import (
    left_alone,
    ruled_device,
    ruled_host,
    sharing,
    unclear,
    unmatched,
    unserved,
)
from supervisor.devices.sighting import DeviceSource, Reading, Sighting
from supervisor.devices.storage import StorageSource
from supervisor.devices.visibility import hidden, hiding
from supervisor.devices.wake import WakeSource
from supervisor.engines.trial import list_devices
from supervisor.errors import SupervisorError
from supervisor.patience import NoAnswer, PatientReader

READ_S = 5.0  # NVML's first start wakes every card: seconds on a large machine
LIST_S = 10.0
STORAGE_S = 1.0  # a disk that must spin up first is measured by a later reading
LIST_AGE_S = 10.0  # asking an engine costs a process, on CUDA also a moment of memory
LIST_RETRY_S = 60.0  # after one that failed: a driver that hangs would cost every profile LIST_S


class HostUnread(SupervisorError):
    """Not even the host's own memory could be read: nothing can be planned."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the host's memory cannot be read: {why}")


class _Listing(Struct, frozen=True):
    """An engine's devices, until when they say what is free, and when to ask again."""

    devices: tuple[EngineDevice, ...]
    fresh_until_s: float
    due_s: float
    note: str | None = None


class HardwareProbe:
    """Makes HardwareProfiles, one at a time. Engines and rules are replaced whole by `adopt`."""

    def __init__(
        self,
        engines: Sequence[Engine],
        rules: PlacementRules,
        *,
        root: Path = ROOT,
        sources: Sequence[DeviceSource] | None = None,
        folders: Sequence[str] = (),
        read_s: float = READ_S,
        list_age_s: float = LIST_AGE_S,
    ) -> None:
        looks = sources or (NvidiaIfThere(root), AmdSource(root), AppleSource())
        self._host = PatientReader("host", HostSource(root).read, limit_s=read_s)
        self._readers = [PatientReader(s.name, s.read, limit_s=read_s) for s in looks]
        self._wake = PatientReader("wake-ups", WakeSource(root).read, limit_s=read_s)
        self._storage = PatientReader("storage", StorageSource(folders).read, limit_s=STORAGE_S)
        self._list_age_s = list_age_s
        self._rpc = RpcServers()
        self._turn = asyncio.Lock()
        self._looks_again = False
        self._seen: Mapping[DeviceId, Device] = {}
        self._known: Mapping[DeviceId, Device] = {}
        self._hidden: Mapping[DeviceId, str] = {}
        self._cards: frozenset[DeviceId | None] | None = None
        self._engines: tuple[Engine, ...] = ()
        self._listings: dict[str, _Listing] = {}
        self.adopt(engines, rules)

    def adopt(self, engines: Sequence[Engine], rules: PlacementRules) -> None:
        """Go on with these engines, of which new ones listed their devices just now, and rules."""
        known = {e.path: self._listings[e.path] for e in engines if e in self._engines}
        self._listings = {e.path: known.get(e.path) or self._heard(e.devices) for e in engines}
        if {e.path for e in self._engines} != {e.path for e in engines}:
            self._seen = self._known = {}  # other engines see other devices
        self._engines, self._rules = tuple(engines), rules
        self._rpc.adopt(rules.rpc_servers, engines)

    async def profile(self) -> HardwareProfile:
        """The machine at this moment, under READ_S and LIST_S. Raises HostUnread."""
        async with self._turn:
            now_s = monotonic()
            host = await self._read_host()
            readings = await self._read_all()
            vendors = [sighting for reading in readings for sighting in reading.sightings]
            await self._refresh_listings(vendors, now_s=now_s)
            storage = await self._read_storage()
            remote = await self._rpc.look()
        # From here on without an await: `adopt` may have come, and its engines count already.
        devices = known_again(self._joined(vendors, now_s=now_s), self._known)
        self._hidden = {**self._hidden, **hidden(vendors, os.environ)}
        carved = {s.pci: s.carved_out for s in vendors if s.carved_out}
        local = tuple(
            self._ruled(sharing(device, host, carved_out=carved.get(device.pci)))
            for device in devices
        )
        self._known = {**self._known, **{d.device_id: d for d in local if d.has_address}}
        told = (
            *(note for reading in readings for note in reading.notes),
            *(Note(NoteKind.ENGINE, each.note) for each in self._listings.values() if each.note),
        )
        ruled = (*local, *(self._ruled(device) for device in remote.devices))
        return HardwareProfile(
            host=ruled_host(host, self._rules.memory),
            devices=ruled,
            notes=(
                *told,
                *remote.notes,
                *self._remarks(local),
                *unmatched(self._rules.devices, ruled),
            ),
            storage=storage,
            absent=self._absences(
                ruled,
                [note.text for note in told if note not in _asides(readings)],
                silent=dict(remote.silent),
                faults=self._faults(readings, ruled),
            ),
        )

    def _faults(self, readings: Sequence[Reading], devices: Sequence[Device]) -> tuple[str, ...]:
        """What keeps cards away, but for those that engines reach past a library that fails."""
        reached = {vendor_of(device.name) for device in devices if device.engine_names}
        return tuple(
            note.text
            for reader, reading in zip(self._readers, readings, strict=True)
            if reading.sightings or vendor_of(reader.name) not in reached
            for note in reading.notes
            if note.kind is NoteKind.FAULT
        )

    def _ruled(self, device: Device) -> Device:
        return ruled_device(device, self._rules, is_hidden=device.device_id in self._hidden)

    def _remarks(self, devices: Sequence[Device]) -> Iterator[Note]:
        """What an operator should know of this machine's devices that were read well."""
        envs = ((engine.backend, child_env(engine, os.environ)) for engine in self._engines)
        told = [each for backend, env in envs for each in hiding(backend, env)]
        yield from unserved(devices, hiding=told)
        yield from unclear(devices, hiding=told)
        yield from left_alone(devices, self._hidden)

    def _absences(
        self,
        devices: Sequence[Device],
        told: Sequence[str],
        *,
        silent: Mapping[DeviceId, str],
        faults: Sequence[str],
    ) -> tuple[Absence, ...]:
        if not self._engines:
            return ()  # not tried yet, or none runs: no device could be usable
        seen = self._seen = remembered(self._seen, devices)
        return absences(
            devices, rules=self._rules.devices, seen=seen, told=told, silent=silent, faults=faults
        )

    def leave_alone(self, rpc_servers: Iterable[str]) -> None:
        """Ask none of these servers until called again: they work for children of ours."""
        self._rpc.leave_alone(rpc_servers)

    @property
    def has_news(self) -> bool:
        """True where a server answered since the last profile, and otherwise than it said."""
        return self._rpc.has_news

    async def attend(self, changed: Callable[[], None]) -> None:
        """Ask RPC servers for ever, so that no profile waits for one; `changed`: there is news."""
        await self._rpc.attend(changed)

    def look_again(self) -> None:
        """Have the next profile ask all engines and servers anew: devices may have changed."""
        self._listings = {p: replace(told, due_s=-inf) for p, told in self._listings.items()}
        self._looks_again = True
        self._rpc.look_again()

    async def _read_all(self) -> list[Reading]:
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(_read(reader)) for reader in self._readers]
        return [read.result() for read in reads]

    async def _read_storage(self) -> tuple[Storage, ...]:
        try:
            return await self._storage.read()
        except (OSError, NoAnswer):  # a dead network mount, or a disk asleep: unknown for now
            return ()

    async def _read_host(self) -> Host:
        try:
            host = await self._host.read()
        except (OSError, NoAnswer) as exc:
            raise HostUnread(str(exc)) from exc
        try:
            return replace(host, wake_s=await self._wake.read())
        except NoAnswer:  # unknown for now
            return host

    async def _refresh_listings(self, vendors: Sequence[Sighting], *, now_s: float) -> None:
        """Ask those engines anew that alone know how much is free on a device we may use."""
        if self._have_changed(vendors):
            self.look_again()
        asks_all, self._looks_again = self._looks_again, False
        by_vendors = self._joined(vendors, now_s=inf)
        wanted = {
            name
            for device in by_vendors
            if device.free_bytes is None and self._ruled(device).use
            for name in device.engine_names
        }
        for engine in self._engines:
            listing = self._listings.get(engine.path)  # None: `adopt` came while one was asked
            if listing is None or listing.due_s > now_s:
                continue
            if asks_all or wanted & {(engine.backend, device.name) for device in listing.devices}:
                heard = await self._listed(engine, listing)
                if engine.path in self._listings:
                    self._listings[engine.path] = heard

    def _have_changed(self, vendors: Sequence[Sighting]) -> bool:
        """True where cards came or went since the last look: engines number them anew."""
        before, self._cards = self._cards, frozenset(s.device_id for s in vendors)
        return before is not None and before != self._cards

    async def _listed(self, engine: Engine, last: _Listing) -> _Listing:
        """A new listing; the last one with a note, and nothing known free, where none comes."""
        try:
            return self._heard(await list_devices(engine, limit_s=LIST_S))
        except SupervisorError as exc:
            due_s = monotonic() + LIST_RETRY_S
            return replace(last, fresh_until_s=-inf, due_s=due_s, note=str(exc))

    def _heard(self, devices: tuple[EngineDevice, ...]) -> _Listing:
        until_s = monotonic() + self._list_age_s
        return _Listing(devices, fresh_until_s=until_s, due_s=until_s)

    def _joined(self, vendors: Sequence[Sighting], *, now_s: float) -> tuple[Device, ...]:
        return devices_of(vendors, [self._seen_by(engine, now_s) for engine in self._engines])

    def _seen_by(
        self, engine: Engine, now_s: float
    ) -> tuple[tuple[Sighting, ...], Mapping[str, str]]:
        listing = self._listings[engine.path]
        source = EngineSource(engine, listing.devices, is_fresh=now_s <= listing.fresh_until_s)
        return source.read().sightings, child_env(engine, os.environ)


def _asides(readings: Sequence[Reading]) -> list[Note]:
    """What sources note that read their cards all the same, such as a want of names."""
    return [
        note
        for reading in readings
        for note in reading.notes
        if reading.sightings and note.kind is not NoteKind.FAULT
    ]


async def _read(reader: PatientReader[Reading]) -> Reading:
    try:
        return await reader.read()
    except NoAnswer as exc:
        return Reading(notes=(Note(NoteKind.FAULT, str(exc)),))
    except OSError as exc:  # of the kernel's files, or no descriptor to open them with
        return Reading(notes=(Note(NoteKind.DRIVER, str(exc)),))
