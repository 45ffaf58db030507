"""The machine as the fleet last read it, and what of its memory still comes back."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from time import monotonic

import structlog

from planners.hardware import DeviceId, HardwareProfile
from planners.instances.room import room_beside
from planners.moving.relief import limited
from planners.plan import LaunchPlan
from planners.view import Observed
from supervisor.errors import SupervisorError
from supervisor.probe import HardwareProbe, HostUnread
from supervisor.records.journal import Journal
from supervisor.records.launch_history import LaunchHistory
from supervisor.settling import MemoryWatch
from supervisor.watch import DeviceWatch

FRESH_S = 1.0  # a launch is planned on a profile no older than this

log = structlog.get_logger(__name__)


class Machine:
    """The one reader of the probe: a reading is taken into all that watches readings."""

    def __init__(
        self,
        probe: HardwareProbe,
        *,
        journal: Journal,
        history: LaunchHistory,
        running: Callable[[], Iterable[Observed]],
    ) -> None:
        self.watch = DeviceWatch(probe, journal)
        self.last: HardwareProfile | None = None
        """None before the first reading."""
        self._probe, self._history, self._running = probe, history, running
        self._memory = MemoryWatch()
        self._read_s = -inf
        self._limits: Mapping[DeviceId, int] = {}

    def hold_back(self, limits: Mapping[DeviceId, int]) -> None:
        """From the next reading on our launches have these limits too: memory was yielded."""
        self._limits = limits
        self.outdate()

    def outdate(self) -> None:
        """The last reading no longer counts: rules or engines are others."""
        self._read_s = -inf

    async def read(self, *, max_age_s: float) -> HardwareProfile | None:
        """The machine, read again when the last reading is older; None where it never could be."""
        is_old = self.last is None or monotonic() - self._read_s > max_age_s
        if is_old or self.watch.is_due():
            self._probe.leave_alone(self._rpc_servers_in_use())
            try:
                self.last = limited(await self.watch.profile(), self._limits)
                self._history.saw(self.last, self._running())
                self._memory.sampled(self.last, now_s=monotonic())
            except SupervisorError as exc:
                log.error("probe.failed", reason=str(exc))  # noqa: TRY400  # the sentence says it
            self._read_s = monotonic()
        return self.last

    async def fresh(self) -> HardwareProfile:
        """The machine on fresh numbers. Raises HostUnread."""
        profile = await self.read(max_age_s=FRESH_S)
        if profile is None:
            raise HostUnread("the daemon's log tells why")
        return profile

    def ended(self, seen: Observed) -> None:
        """An instance is gone: its memory comes back from now on."""
        if self.last is not None:
            self._memory.ended(seen, self.last, now_s=monotonic())

    def settling(self) -> dict[DeviceId, int]:
        """Bytes of what ended that still come back, by device."""
        return self._memory.settling(now_s=monotonic())

    def room_bytes(self, plan: LaunchPlan) -> Mapping[DeviceId, int]:
        """What the plan may take beside all other instances; {} before the first reading."""
        if self.last is None:
            return {}
        others = [seen for seen in self._running() if seen.plan is not plan]
        return room_beside(plan, self.last, others)

    def _rpc_servers_in_use(self) -> set[str]:
        alive = (seen for seen in self._running() if seen.pid is not None)
        return {server for seen in alive for server in seen.plan.rpc_servers}
