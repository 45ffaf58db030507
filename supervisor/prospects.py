"""How models would be launched now, or on another machine. Launches nothing.

Beside what runs, what was learned here, and the contexts that callers made models grow to.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from planners.hardware import HardwareProfile
from planners.instances.taken import taken
from planners.instances.twins import Shared
from planners.layout.budget import freed
from planners.layout.other_machine import engines_there
from planners.layout.outlook import Outlook, Surroundings
from planners.model import ModelId, ServedModel
from planners.view import InstanceState, Observed
from supervisor.desired import Desired
from supervisor.planner import Planner
from supervisor.preflight import Preflights
from supervisor.records.launch_history import LaunchHistory


class Prospects:
    """Questions of `inferenceosctl plan`, answered by the fleet's own planner."""

    def __init__(
        self,
        planner: Planner,
        *,
        history: LaunchHistory,
        preflights: Preflights,
        desired: Callable[[], Desired],
        running: Callable[[], Iterable[Observed]],
        processes: Callable[[], Shared],
        contexts: Callable[[], Mapping[ModelId, int]],
        profile: Callable[[], Awaitable[HardwareProfile]],
    ) -> None:
        self._planner, self._history, self._preflights = planner, history, preflights
        self._desired, self._running, self._processes = desired, running, processes
        self._contexts, self._profile = contexts, profile

    async def outlook(
        self, served: ServedModel, *, elsewhere: HardwareProfile | None = None
    ) -> Outlook:
        """How the model would be launched now, on fresh numbers, idle ones stopped where need be.

        A context that its settings in the catalogue do not have is meant: no caller's adds to it.
        With `elsewhere`: alone on that machine. Raises HostUnread, PlanTookTooLong, Stopping.
        """
        machine, around = await self._surroundings((served,), elsewhere=elsewhere)
        return await self._planner.outlook(served, machine, around)

    async def outlooks(
        self, models: Sequence[ServedModel], *, elsewhere: HardwareProfile | None = None
    ) -> tuple[Outlook, ...]:
        """How several models would be launched beside each other and what else runs now.

        With `elsewhere`: with nothing else on that machine. Raises HostUnread, PlanTookTooLong,
        Stopping.
        """
        machine, around = await self._surroundings(models, elsewhere=elsewhere)
        return await self._planner.outlooks(models, machine, around)

    async def _surroundings(
        self, models: Sequence[ServedModel], *, elsewhere: HardwareProfile | None
    ) -> tuple[HardwareProfile, Surroundings]:
        here, rules = self._desired().engines or (), self._desired().rules
        if elsewhere is not None:
            return elsewhere, Surroundings(engines_there(elsewhere, here=here), rules, {}, {})
        profile = await self._profile()
        asked = {served.model_id for served in models}
        running = tuple(self._running())
        others = [seen for seen in running if seen.model_id not in asked]
        own = taken(profile, (seen for seen in running if seen.model_id in asked))
        profile = freed(profile, own.held)  # a launch anew would have it back
        around = Surroundings(
            here,
            rules,
            {},
            {},
            learned=self._history.learned,
            dry_runs=self._preflights.dry_runs,
            contexts=dict(self._kept_contexts(models)),
            idle=frozenset(seen.instance_id for seen in others if self._is_idle(seen)),
        )
        return profile, around.beside(others, profile)

    def _is_idle(self, seen: Observed) -> bool:
        """Whether nobody uses the instance, and nobody pinned it."""
        offered = self._processes().models.get(seen.model_id)
        is_pinned = offered is not None and offered.settings.pin
        is_unused = seen.idle_since_s is not None and not seen.waiting
        return seen.state is InstanceState.READY and is_unused and not is_pinned

    def _kept_contexts(self, models: Sequence[ServedModel]) -> Iterable[tuple[ModelId, int]]:
        """What callers once asked for, of those models that are planned as they are offered."""
        wanted, offered = self._contexts(), self._processes()
        for asked in models:
            own = offered.models.get(offered.host(asked.model_id))
            if own is None or own.settings.context != asked.settings.context:
                continue
            if own.model_id in wanted:
                yield asked.model_id, wanted[own.model_id]
