"""Several models at once: who gets which device when all are to be loaded."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from planners.backends import Engine
from planners.errors import blamed_on
from planners.hardware import DeviceId, HardwareProfile
from planners.layout.asked import CONTEXT_WORTH_LAYERS, CONTEXTS
from planners.layout.dry_runs import NO_DRY_RUNS, DryRuns
from planners.layout.measures import Measures
from planners.lessons.samples import NOTHING_LEARNED, Learned
from planners.model import ModelId, ServedModel
from planners.placement import Unplaced, attempt_launch
from planners.plan import LaunchPlan, Shortfall
from planners.settings import PlacementRules
from planners.speed import NOTICED

ORDERS = 3  # who is planned first has the best places: each of three models once
_NOTHING: Mapping[DeviceId, int] = MappingProxyType({})
_NO_CONTEXTS: Mapping[ModelId, int] = MappingProxyType({})

Answers = dict[ModelId, LaunchPlan | Shortfall]
_Attempt = LaunchPlan | Shortfall | Unplaced
_Attempts = dict[ModelId, _Attempt]


def plan_together(
    models: Sequence[ServedModel],
    *,
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int] = _NOTHING,
    learned: Learned = NOTHING_LEARNED,
    dry_runs: DryRuns = NO_DRY_RUNS,
    least_contexts: Mapping[ModelId, int] = _NO_CONTEXTS,
) -> Answers:
    """A plan for each model beside the others, or what it lacks then, in the given order.

    Each is planned on what those before it left: in the given order, and with each other one of
    the first few before the rest. The order that fits most models counts, then the least time for
    a token of each; of equals the given one. An automatic context gives way where that gets another
    model in, or onto a device: more of the one is not worth a layer of the other. `least_contexts`:
    tokens that callers of a model asked for; less is no choice. Raises PlanError, PlanBug.
    """
    measures = {m.model_id: Measures(m.info, m.draft) for m in models}

    def attempt(
        served: ServedModel, *, promised: Mapping[DeviceId, int], most_context: int | None = None
    ) -> _Attempt:
        with blamed_on(served.model_id):
            return attempt_launch(
                served, hardware=hardware, engines=engines, rules=rules, promised=promised,
                held=held, learned=learned, measures=measures[served.model_id], dry_runs=dry_runs,
                least_context=least_contexts.get(served.model_id, 0), most_context=most_context,
            )  # fmt: skip

    found = _in_best_order(models, attempt, promised)
    if len(models) > 1 and _is_crowded(models, found, hardware):
        found = _with_modest_contexts(models, attempt, promised, usual=found)
    return {model.model_id: _answer(found[model.model_id]) for model in models}


def _answer(attempt: _Attempt) -> LaunchPlan | Shortfall:
    # Only here: what the models lack in the other orders, nobody asks.
    return attempt.answer() if isinstance(attempt, Unplaced) else attempt


def _is_crowded(
    models: Sequence[ServedModel], attempts: _Attempts, hardware: HardwareProfile
) -> bool:
    """Whether some model found no place, or not all of it a device where there are any."""
    for model in models:
        plan = attempts[model.model_id]
        if not isinstance(plan, LaunchPlan):
            return True
        is_whole = plan.n_gpu_layers > model.info.n_layer and not plan.n_cpu_moe
        if not is_whole and any(d.use and d.engine_names for d in hardware.devices):
            return True
    return False


def _with_modest_contexts(
    models: Sequence[ServedModel],
    attempt: Callable[..., _Attempt],
    promised: Mapping[DeviceId, int],
    *,
    usual: _Attempts,
) -> _Attempts:
    """The largest automatic contexts that cost no other model anything; `usual` where all do so.

    In the order of `usual`: trying the others too would take as long again.
    """
    order = sorted(models, key=lambda model: list(usual).index(model.model_id))
    least = _one_by_one(order, partial(attempt, most_context=CONTEXT_WORTH_LAYERS), promised)
    if not _is_better(least, usual):
        return usual
    for most in (context for context in CONTEXTS[1:] if context > CONTEXT_WORTH_LAYERS):
        found = _one_by_one(order, partial(attempt, most_context=most), promised)
        if not _is_better(least, found):
            return found
    return least


def _in_best_order(
    models: Sequence[ServedModel],
    attempt: Callable[..., _Attempt],
    promised: Mapping[DeviceId, int],
) -> _Attempts:
    best: _Attempts | None = None
    for i in range(min(max(len(models), 1), ORDERS)):
        order = (*models[i : i + 1], *models[:i], *models[i + 1 :])
        attempts = _one_by_one(order, attempt, promised)
        if best is None or _merit(attempts) > _merit(best):
            best = attempts
    return best or {}


def _one_by_one(
    order: Sequence[ServedModel],
    attempt: Callable[..., _Attempt],
    promised: Mapping[DeviceId, int],
) -> _Attempts:
    spoken_for = Counter(promised)
    attempts: _Attempts = {}
    for served in order:
        # A copy: an Unplaced may be asked later, of what was promised by now.
        attempts[served.model_id] = found = attempt(served, promised=Counter(spoken_for))
        if isinstance(found, LaunchPlan):
            spoken_for.update({part.device_id: part.upper_bytes for part in found.predicted})
    return attempts


def _merit(attempts: _Attempts) -> tuple[int, float]:
    plans = [attempt for attempt in attempts.values() if isinstance(attempt, LaunchPlan)]
    return len(plans), -sum(1 / (plan.predicted_decode_tokens_per_s or 1e-9) for plan in plans)


def _is_better(one: _Attempts, other: _Attempts) -> bool:
    """Whether `one` fits more models, or as many so much faster that anybody would notice."""
    (n_one, minus_s), (n_other, minus_other_s) = _merit(one), _merit(other)
    return n_one > n_other or (n_one == n_other and minus_s * NOTICED > minus_other_s)
