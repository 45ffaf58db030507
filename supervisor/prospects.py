"""How models would be launched now, or on another machine. Launches nothing.

Beside what runs, what was learned here, and the contexts that callers made models grow to.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from planners.hardware import HardwareProfile
from planners.model import ModelId, ServedModel
from planners.other_machine import engines_there
from planners.outlook import Outlook, Surroundings
from planners.twins import Shared
from planners.view import Observed
from supervisor.desired import Desired
from supervisor.launch_history import LaunchHistory
from supervisor.planner import Planner
from supervisor.preflight import Preflights


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
        """How the model would be launched beside what runs now, on fresh numbers.

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
        others = [seen for seen in self._running() if seen.model_id not in asked]
        around = Surroundings(
            here,
            rules,
            {},
            {},
            learned=self._history.learned,
            dry_runs=self._preflights.dry_runs,
            contexts=dict(self._kept_contexts(models)),
        )
        return profile, around.beside(others, profile)

    def _kept_contexts(self, models: Sequence[ServedModel]) -> Iterable[tuple[ModelId, int]]:
        """What callers once asked for, of those models that are planned as they are offered."""
        wanted, offered = self._contexts(), self._processes()
        for asked in models:
            own = offered.models.get(offered.host(asked.model_id))
            if own is None or own.settings.context != asked.settings.context:
                continue
            if own.model_id in wanted:
                yield asked.model_id, wanted[own.model_id]
