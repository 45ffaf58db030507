"""Where a model goes: engine, devices, layers, context and batch, out of what is free.

The fastest placement, by planners.speed, that gives what was asked. Where it does not fit, or what
nobody asked for would slow it down much, concessions in this order: the prompt cache (it takes what
is left), a smaller ubatch, whole windows (`swa_full`), the automatic context size by size, an
automatic KV type (f16, q8_0), experts to the host, layers to the host, the processor alone. An
automatic number of slots is one: there is none to concede. What the operator fixed is never
lowered: there is a Shortfall then. Placement makes room for the upper bound of every estimate; what
fits by the estimate alone is placed in doubt where a dry run can tell.

Whoever plans imports this module as it does so: with the graphs it is a tenth of an idle daemon's
memory and of its start, and a daemon that loads no model needs none of it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine, preferred
from planners.graph.fallback import fallbacks
from planners.graph.repack import repacks
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.layout.asked import asked
from planners.layout.budget import freed
from planners.layout.dry_run_reasons import told_by_dry_runs
from planners.layout.dry_runs import NO_DRY_RUNS, DryRuns
from planners.layout.engine_choice import engine_reason
from planners.layout.explanation import explained
from planners.layout.measures import Drawings, Measures
from planners.layout.placed import Placed
from planners.layout.prompt_cache import PromptCache, prompt_cache
from planners.layout.search import Search
from planners.layout.threads import n_threads, threads_reason
from planners.lessons.learning import taught
from planners.lessons.rates import rates
from planners.lessons.samples import NOTHING_LEARNED, Learned, key_of, measured_speeds
from planners.memory import layer_devices
from planners.model import ServedModel
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.reasons import Reason
from planners.rpc import servers_of
from planners.settings import PlacementRules
from planners.sizes import format_size

NO_FALLBACK = (
    "not one of its layers finds room on a device, and models.cpu_fallback is deny: it would have "
    "to run on the processor alone"
)
_NOTHING: Mapping[DeviceId, int] = MappingProxyType({})


def plan_launch(
    served: ServedModel,
    *,
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int] = _NOTHING,
    could_free: Mapping[DeviceId, int] = _NOTHING,
    learned: Learned = NOTHING_LEARNED,
    measures: Measures | None = None,
    dry_runs: DryRuns = NO_DRY_RUNS,
    least_context: int = 0,
) -> LaunchPlan | Shortfall:
    """The best launch within the room there is, or what is missing for an acceptable one.

    `promised`: bytes spoken for though they count as free. `held`: bytes of our running instances,
    which count against limits. `could_free`: bytes that idle instances could give back; where they
    would make the launch faster, the answer is the Shortfall that eviction closes. `learned`: rates
    observed here. `measures`: the model's, where it is planned several times. `dry_runs`: what the
    engine has told of launches, which counts before what is predicted of them. `least_context`:
    tokens of a request that a caller wants, however little would do otherwise. Raises PlanError
    where the rules name an unknown KV cache type.
    """
    answer = attempt_launch(
        served, hardware=hardware, engines=engines, rules=rules, promised=promised, held=held,
        could_free=could_free, learned=learned, measures=measures, dry_runs=dry_runs,
        least_context=least_context,
    )  # fmt: skip
    return answer.answer() if isinstance(answer, Unplaced) else answer


def attempt_launch(
    served: ServedModel,
    *,
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int] = _NOTHING,
    could_free: Mapping[DeviceId, int] = _NOTHING,
    learned: Learned = NOTHING_LEARNED,
    measures: Measures | None = None,
    dry_runs: DryRuns = NO_DRY_RUNS,
    least_context: int = 0,
    most_context: int | None = None,
) -> "LaunchPlan | Shortfall | Unplaced":
    """As `plan_launch`, but what is missing for a model without a place is left to be asked for.

    `most_context`: no automatic context above it, for the sake of other models.
    """
    ask = asked(served, rules=rules, least_context=least_context).held_to(most_context)
    threads = n_threads(hardware, served.info, n_parallel=ask.n_parallel)
    search = Search(
        served,
        ask,
        hardware,
        promised,
        held,
        n_threads=threads,
        rates=rates(hardware, n_threads=threads, learned=learned),
        measures=measures or Measures(served.info, served.draft),
        drawings=Drawings(),
        learned=learned,
        allows_cpu_fallback=rules.allows_cpu_fallback,
        dry_runs=dry_runs,
    )
    measured = measured_speeds(learned, served.info.digest)
    ranked = preferred(engines, order=rules.backends, measured=measured)
    placed = search.best(ranked)
    if could_free:
        roomier = search.modest(freed(hardware, could_free)).undoubting().best(ranked)
        if roomier is not None and (placed is None or roomier.is_worth_more_than(placed)):
            return _lacking(search, roomier)
    return Unplaced(search, ranked) if placed is None else _plan(search, placed)


class Unplaced(Struct, frozen=True):
    """A model for which no room was found now."""

    _search: Search
    _engines: tuple[Engine, ...]

    def answer(self) -> LaunchPlan | Shortfall:
        """What it lacks for the least that is acceptable; a plan where it lacks nothing.

        A search of its own.
        """
        search = self._search
        if not self._engines:
            return Shortfall(search.served.model_id, {}, "no llama-server runs on this machine")
        alone = search.alone()
        if (found := alone.best(self._engines)) is not None:
            return _lacking(search, found)
        ways = [*self._with_part_on_devices(alone), *self._on_host(alone)]
        if not ways:
            return Shortfall(search.served.model_id, {}, NO_FALLBACK)
        least = min(ways, key=lambda way: sum(way.missing_bytes(search.room(way.engine)).values()))
        return _lacking(search, least if least.shape.split else search.drawn(least))

    def _with_part_on_devices(self, alone: Search) -> Iterator[Placed]:
        """As many layers on devices as they hold, the rest on a host that had the memory."""
        found = alone.on_endless_host().best(self._engines)
        if found is not None and found.shape.split:
            yield found

    def _on_host(self, alone: Search) -> Iterator[Placed]:
        """The least without a device by its estimate, where the processor may do all."""
        *_, least = (None, *alone.on_host(self._engines))
        if least is not None:
            yield least


def _lacking(search: Search, placed: Placed) -> LaunchPlan | Shortfall:
    """What `placed` lacks now; its plan where that is nothing."""
    shape, room = placed.shape, search.room(placed.engine)
    missing = placed.missing_bytes(room)
    if not missing:
        return _plan(search, replace(placed, room=room))
    where = f"{shape.n_gpu_layers} of {search.info.n_layer + 1} layers on devices"
    needs = sum(part.upper_bytes for part in placed.predicted)
    reason = (
        f"{format_size(needs)} are needed for context {shape.n_ctx_seq} × {shape.n_parallel} "
        f"with {where if shape.split else 'all layers on the processor'}"
    )
    if HOST in missing and (leaves := _leaves(search)) is not None:
        reason += f"; a limit or a yield leaves models {format_size(leaves)} of {HOST}"
    return Shortfall(search.served.model_id, missing, reason)


def _leaves(search: Search) -> int | None:
    """Bytes of the host that a limit leaves to all models; None where the machine has no more."""
    host = search.hardware.host
    limit, room = host.limit_bytes, host.available_bytes - host.reserve_bytes
    return limit if limit is not None and limit - search.held.get(HOST, 0) < room else None


def _plan(search: Search, placed: Placed) -> LaunchPlan:
    """The plan of a way that fits, as corrected by what launches here taught."""
    plan = _launch(search, placed)
    before = placed.predicted
    if key_of(plan) in search.learned.lessons:
        unlearned = replace(search.prediction, learned=NOTHING_LEARNED)
        before = unlearned.of(placed.engine, placed.room, placed.shape, is_drawn=True)
    return taught(plan, before, search.learned)


def _launch(search: Search, placed: Placed) -> LaunchPlan:
    """The plan, with a prompt cache out of the host memory that is left."""
    shape, engine, served = placed.shape, placed.engine, search.served
    spare_bytes = placed.room.host_bytes - placed.host_need_bytes
    cache = prompt_cache(search.info, shape, spare_bytes=spare_bytes)
    host, *others = placed.predicted
    host = replace(host, overhead_bytes=host.overhead_bytes + cache.host_bytes)
    predicted = (host, *others)
    rpc_servers, rpc_names = servers_of(search.hardware, [device for device, _ in shape.split])
    names = {budget.device_id: budget.engine_name for budget in placed.room.devices} | rpc_names
    return LaunchPlan(
        model_id=served.model_id,
        model_path=served.path,
        model_digest=search.info.digest,
        file_key=served.file_key,
        backend=engine.backend,
        engine_id=engine.engine_id,
        devices=tuple((device, names[device], layers) for device, layers in shape.split),
        n_ctx=shape.n_ctx,
        n_parallel=shape.n_parallel,
        n_batch=shape.n_batch,
        n_ubatch=shape.n_ubatch,
        n_gpu_layers=shape.n_gpu_layers,
        n_threads=search.n_threads,
        type_k=shape.type_k,
        type_v=shape.type_v,
        flash_attn=shape.flash_attn,
        cache_ram_mib=cache.cache_ram_mib,
        ctx_checkpoints=cache.ctx_checkpoints,
        embedding=shape.embedding,
        mmproj_path=served.settings.mmproj_path,
        draft_path=served.settings.draft_path,
        lora_paths=served.settings.lora_paths,
        extra_flags=served.settings.flags,
        chat_template=served.template.jinja if served.template is not None else "",
        predicted=predicted,
        reasons=tuple(_reasons(search, placed, predicted=predicted, cache=cache)),
        n_cpu_moe=shape.n_cpu_moe,
        swa_full=shape.swa_full,
        repack=repacks(served, engine=engine),
        rpc_servers=rpc_servers,
        predicted_prompt_tokens_per_s=placed.speed.prompt_tokens_per_s,
        predicted_decode_tokens_per_s=placed.speed.decode_tokens_per_s,
        pooling=search.info.pooling if shape.embedding else None,
        doubt=placed.doubt,
    )


def _reasons(
    search: Search, placed: Placed, *, predicted: tuple[DeviceBytes, ...], cache: PromptCache
) -> Iterator[Reason]:
    yield from engine_reason(placed)
    computes_here = placed.shape.n_gpu_layers <= search.info.n_layer or placed.shape.n_cpu_moe
    yield from explained(
        search.info,
        search.asked,
        placed.shape,
        room=placed.room,
        predicted=predicted,
        cache=cache,
        rates=search.rates,
        speed=placed.speed,
        threads=threads_reason(search.hardware, count=search.n_threads) if computes_here else None,
    )
    exact = search.prediction.exact(placed.engine, placed.shape)
    yield from fallbacks(search.info, exact, layer_devices(search.info, exact))
    yield from told_by_dry_runs(placed, search.prediction)
    yield from search.rung(placed.engine).reasons()
