"""Several models at once: who gets which device when all are to be loaded."""

from collections import Counter
from collections.abc import Mapping, Sequence

from planners.backends import Engine
from planners.hardware import DeviceId, HardwareProfile
from planners.layout.measures import Measures
from planners.model import ModelId, ServedModel
from planners.placement import Unplaced, attempt_launch
from planners.plan import LaunchPlan, Shortfall
from planners.settings import PlacementRules

ORDERS = 3  # who is planned first has the best places: each of three models once

Answers = dict[ModelId, LaunchPlan | Shortfall]
_Attempts = dict[ModelId, LaunchPlan | Shortfall | Unplaced]


def plan_together(
    models: Sequence[ServedModel],
    *,
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
) -> Answers:
    """A plan for each model beside the others, or what it lacks then, in the given order.

    Each is planned on what those before it left: in the given order, and with each other one of
    the first few before the rest. The order that fits most models counts, then the least time for
    a token of each; of equals the given one.
    """
    measures = {m.model_id: Measures(m.info, m.draft) for m in models}
    best: _Attempts | None = None
    for i in range(min(max(len(models), 1), ORDERS)):
        order = (*models[i : i + 1], *models[:i], *models[i + 1 :])
        attempts = _in_turn(order, hardware, engines, rules, promised, measures)
        if best is None or _merit(attempts) > _merit(best):
            best = attempts
    found = best or {}
    return {model.model_id: _answer(found[model.model_id]) for model in models}


def _answer(attempt: LaunchPlan | Shortfall | Unplaced) -> LaunchPlan | Shortfall:
    # Only here: what the models lack in the other orders, nobody asks.
    return attempt.answer() if isinstance(attempt, Unplaced) else attempt


def _in_turn(
    order: Sequence[ServedModel],
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
    measures: Mapping[ModelId, Measures],
) -> _Attempts:
    spoken_for = Counter(promised)
    attempts: _Attempts = {}
    for served in order:
        attempt = attempt_launch(
            served,
            hardware=hardware,
            engines=engines,
            rules=rules,
            promised=Counter(spoken_for),
            measures=measures[served.model_id],
        )
        attempts[served.model_id] = attempt  # may be asked later, of what was promised by now
        if isinstance(attempt, LaunchPlan):
            spoken_for.update({part.device_id: part.upper_bytes for part in attempt.predicted})
    return attempts


def _merit(attempts: _Attempts) -> tuple[int, float]:
    plans = [attempt for attempt in attempts.values() if isinstance(attempt, LaunchPlan)]
    return len(plans), -sum(1 / (plan.predicted_decode_tokens_per_s or 1e-9) for plan in plans)
