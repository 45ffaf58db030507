"""Several models at once: who gets which device when all are to be loaded."""

from collections import Counter
from collections.abc import Mapping, Sequence

from planners.backends import Engine
from planners.hardware import DeviceId, HardwareProfile
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan, Shortfall
from planners.settings import PlacementRules

ORDERS = 3  # who is planned first has the best places: each of three models once

Answers = dict[ModelId, LaunchPlan | Shortfall]


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
    best: Answers | None = None
    for i in range(min(max(len(models), 1), ORDERS)):
        order = (*models[i : i + 1], *models[:i], *models[i + 1 :])
        answers = _in_turn(order, hardware, engines, rules, promised)
        if best is None or _merit(answers) > _merit(best):
            best = answers
    found = best or {}
    return {model.model_id: found[model.model_id] for model in models}


def _in_turn(
    order: Sequence[ServedModel],
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
) -> Answers:
    spoken_for = Counter(promised)
    answers: Answers = {}
    for served in order:
        answer = plan_launch(
            served, hardware=hardware, engines=engines, rules=rules, promised=spoken_for
        )
        answers[served.model_id] = answer
        if isinstance(answer, LaunchPlan):
            spoken_for.update({part.device_id: part.upper_bytes for part in answer.predicted})
    return answers


def _merit(answers: Answers) -> tuple[int, float]:
    plans = [answer for answer in answers.values() if isinstance(answer, LaunchPlan)]
    return len(plans), -sum(1 / (plan.predicted_decode_tokens_per_s or 1e-9) for plan in plans)
