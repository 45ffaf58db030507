"""Keeps an eye on the devices: looks again when they may have changed, and tells what did.

Looks again after a suspend, after a child lost a device, when a new device has no engine yet, and
every RELOOK_S while a wanted one is missing. Owns no reading of its own: the probe does.
"""

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic, time

import structlog

from planners.hardware import Device, DeviceId, DeviceKind, HardwareProfile
from planners.instances.absence import is_renamed
from supervisor.probe import HardwareProbe
from supervisor.records.journal import Journal
from supervisor.suspend import SLEPT_S, suspended_s

RELOOK_S = 60.0  # cadence of asking engines anew while a wanted device is missing

log = structlog.get_logger(__name__)


class DeviceWatch:
    """A HardwareProbe that notices changes."""

    def __init__(
        self,
        probe: HardwareProbe,
        journal: Journal,
        *,
        suspended: Callable[[], float] = suspended_s,
        relook_s: float = RELOOK_S,
    ) -> None:
        self._probe, self._journal = probe, journal
        self._suspended, self._relook_s = suspended, relook_s
        self._slept_s = suspended()
        self._looked_s = monotonic()
        self._must_look = False
        self._last: HardwareProfile | None = None
        self._unserved: frozenset[DeviceId] = frozenset()
        self.appeared = asyncio.Event()
        """Set when a card came that no engine sees: one that was refused may run now."""
        self.resumed_at: float | None = None
        """UTC seconds of the last resume that was noticed."""

    def is_due(self) -> bool:
        """True when the last profile may be wrong, however young it is."""
        return self._probe.has_news or self._must_look_again()

    def device_lost(self, reason: str) -> None:
        """A child lost a device: the next profile looks again."""
        self._must_look = True
        self._record("device.failed", reason, is_trouble=True)

    async def profile(self) -> HardwareProfile:
        """The machine at this moment. Raises HostUnread."""
        if self._has_slept():
            self._note_resume()
        if self._must_look_again():
            self._must_look = False
            self._looked_s = monotonic()
            self._probe.look_again()
        profile = await self._probe.profile()
        self._compare(profile)
        return profile

    def _must_look_again(self) -> bool:
        return self._must_look or self._has_slept() or self._is_time()

    def _has_slept(self) -> bool:
        return self._suspended() - self._slept_s > SLEPT_S

    def _is_time(self) -> bool:
        is_missing = self._last is not None and _misses_a_card(self._last)
        return is_missing and monotonic() - self._looked_s >= self._relook_s

    def _note_resume(self) -> None:
        slept_s, self._slept_s = self._suspended() - self._slept_s, self._suspended()
        self.resumed_at, self._must_look = time(), True
        self._record("machine.resumed", f"it slept for {slept_s:.0f} s; devices are read anew")

    def _compare(self, profile: HardwareProfile) -> None:
        """Tell what came, went, and whether the machine is degraded now."""
        last, self._last = self._last, profile
        # A driver that came up late shows a card that no engine had listed: ask once, not always.
        unserved = frozenset(d.device_id for d in _here(profile) if not d.engine_names)
        self._must_look = self._must_look or bool(unserved - self._unserved)
        self._unserved = unserved
        if last is not None:
            for device in _only_in(_here(profile), _here(last)):
                self._record("device.appeared", f"{device.name} ({device.device_id})")
                if not device.engine_names:
                    self.appeared.set()
            for device in _only_in(_here(last), _here(profile)):
                self._record("device.disappeared", f"{device.name} ({device.device_id})")
        was = () if last is None else last.absent
        if profile.absent and profile.absent != was:
            why = "; ".join(
                f"{absent.name} is missing: {absent.reason}" for absent in profile.absent
            )
            self._record("machine.degraded", why, is_trouble=True)
        elif was and not profile.absent:
            self._record("machine.recovered", "every wanted device is here again")

    def _record(self, kind: str, reason: str, *, is_trouble: bool = False) -> None:
        write = log.warning if is_trouble else log.info
        write(kind, reason=reason)
        self._journal.record(kind, reason=reason)


def _misses_a_card(profile: HardwareProfile) -> bool:
    """True while a device of this machine is missing; RPC servers are asked on by themselves."""
    remote = {d.name for d in profile.devices if d.kind is DeviceKind.REMOTE}
    return any(absent.name not in remote for absent in profile.absent)


def _here(profile: HardwareProfile) -> list[Device]:
    """All devices; of ggml-rpc-servers only those that answer."""
    return [d for d in profile.devices if d.engine_names or d.kind is not DeviceKind.REMOTE]


def _only_in(devices: Iterable[Device], others: Iterable[Device]) -> list[Device]:
    known = list(others)
    ids = {device.device_id for device in known}
    return [
        device
        for device in devices
        if device.device_id not in ids and not any(is_renamed(device, o) for o in known)
    ]
