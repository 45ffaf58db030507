"""Which decided actions are still true of the present: thinking takes time, and the world moves on.

An action that is dropped costs nothing: the next look decides anew.
"""

from collections.abc import Sequence

from planners.instances.actions import Action, Allow, Move, Refuse, Restart, Start, Stop, Yield
from planners.instances.launches import wanted
from planners.instances.stops import why_moved, why_stop
from planners.launch_key import launch_key
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.view import InstanceState, View
from planners.waiting.turns import evictable, is_pinned


def still_true(
    actions: Sequence[Action], *, decided_on: View, view: View, now_s: float
) -> tuple[Action, ...]:
    """Those of `actions`, decided on an earlier view, that are harmless and of use in `view`.

    Evictions for one model go together: with one of them void the others would be in vain.
    """
    if not actions or _desires(decided_on) != _desires(view):
        return ()
    now = _Present(decided_on, view, now_s)
    kept = [action for action in actions if now.admits(action)]
    leaves = Stop | Yield
    void = {a.room_for for a in actions if isinstance(a, leaves) and a not in kept} - {None}
    return tuple(a for a in kept if not (isinstance(a, leaves) and a.room_for in void))


def _desires(view: View) -> tuple[object, ...]:
    return view.rules, view.settings, view.engines


class _Present:
    """The world as it is now, against the one that was decided on."""

    def __init__(self, decided_on: View, view: View, now_s: float) -> None:
        self._before, self._view, self._now_s = decided_on, view, now_s
        self._instances = {seen.instance_id: seen for seen in view.instances}
        self._by_model = {seen.model_id: seen for seen in view.instances}
        self._wanted = {served.model_id for served in wanted(view, now_s=now_s)}
        self._evictable = {seen.instance_id for seen in evictable(view, now_s=now_s)}

    def admits(self, action: Action) -> bool:
        """Whether the action may be carried out now."""
        match action:
            case Start(plan, key):
                return (
                    plan.model_id in self._wanted
                    and plan.model_id not in self._by_model
                    and self._key(plan.model_id, self._view) == key
                    and self._has_devices(plan)
                )
            case Restart(instance_id, plan):
                return self._is_down(instance_id) and self._has_devices(plan)
            case Stop():
                return self._may_stop(action)
            case Yield(instance_id, _, room_for):
                if room_for is None:
                    return self._lacks_context(instance_id)
                seen = self._instances.get(instance_id)
                if seen is None or seen.state is not InstanceState.READY:
                    return False
                return not is_pinned(self._view, seen) and room_for in self._wanted
            case Move():
                return self._may_move(action)
            case Allow(instance_id):
                return self._lacks_context(instance_id)
            case Refuse(model_id):
                return self._may_refuse(model_id)

    def _may_stop(self, stop: Stop) -> bool:
        seen = self._instances.get(stop.instance_id)
        if seen is None:
            return False
        if stop.finishes:
            return self._lacks_context(stop.instance_id)
        if stop.room_for is not None:
            return stop.instance_id in self._evictable and stop.room_for in self._wanted
        return why_stop(self._view, seen, now_s=self._now_s) is not None

    def _may_move(self, move: Move) -> bool:
        seen = self._instances.get(move.instance_id)
        if seen is None or seen.state is not InstanceState.READY:
            return False
        if seen.model_id in self._view.moving:
            return False
        is_as_decided = self._key(seen.model_id, self._view) == move.launch_key
        is_wanted = why_moved(self._view, seen) is not None or self._lacks_context(seen.instance_id)
        return is_as_decided and is_wanted and self._has_devices(move.plan)

    def _lacks_context(self, instance_id: InstanceId) -> bool:
        """Whether callers of a ready instance still wait for another context than it has."""
        seen = self._instances.get(instance_id)
        if seen is None or seen.state is not InstanceState.READY:
            return False
        demand = self._view.demand.get(seen.model_id)
        return demand is not None and demand.context > 0

    def _may_refuse(self, model_id: ModelId) -> bool:
        """No file, no instance and no memory of another one may have changed for the better."""
        before = {seen.instance_id: seen for seen in self._before.instances}
        return (
            (model_id in self._view.demand or model_id in self._wanted)
            and self._key(model_id, self._view) == self._key(model_id, self._before)
            and before.keys() <= self._instances.keys()
            and all(self._instances[i].state is seen.state for i, seen in before.items())
        )

    def _is_down(self, instance_id: InstanceId) -> bool:
        """Whether an instance still waits to be launched again, from the same file."""
        seen = self._instances.get(instance_id)
        if seen is None or not seen.state.is_down or seen.model_id not in self._wanted:
            return False
        return self._key(seen.model_id, self._view) == seen.launch_key

    def _has_devices(self, plan: LaunchPlan) -> bool:
        here = {device.device_id for device in self._view.hardware.devices}
        return here.issuperset(device_id for device_id, _, _ in plan.devices)

    @staticmethod
    def _key(model_id: ModelId, view: View) -> str | None:
        served = view.models.get(model_id)
        return None if served is None else launch_key(served, view.rules)
