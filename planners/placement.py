"""Where a model goes: engine, devices, layers, context and batch, out of what is free.

The fastest placement, by planners.speed, that gives what was asked. Where it does not fit,
concessions in this order: the prompt cache (it takes what is left), a smaller ubatch, whole windows
(`swa_full`), the automatic context rung by rung, an automatic KV type (f16, q8_0), experts to the
host, layers to the host, the processor alone. An automatic number of slots is one: there is none to
concede. What the operator fixed is never lowered: there is a Shortfall then. Placement makes room
for the upper bound of every estimate; what fits by the estimate alone is placed in doubt where a
dry run can tell.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planners.backends import Engine, preferred
from planners.dry_runs import NO_DRY_RUNS, DryRuns
from planners.fallback import fallbacks
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.ladder import Rung, RungKey
from planners.layout.around import LayOut, around_buffers, hopefully
from planners.layout.asked import (
    CONTEXT_ON_HOST,
    CONTEXT_WORTH_LAYERS,
    Asked,
    asked,
    ubatches,
)
from planners.layout.budget import Budget, Budgets, budgets, emptied, freed
from planners.layout.dry_run_reasons import told_by_dry_runs
from planners.layout.explanation import explained
from planners.layout.layer_split import Layout, Splitter
from planners.layout.measures import Drawings, Measures
from planners.layout.placed import Placed, fastest
from planners.layout.prediction import Prediction
from planners.layout.prompt_cache import prompt_cache
from planners.layout.threads import n_threads
from planners.learning import taught
from planners.lessons import key_of
from planners.memory import layer_devices
from planners.model import LayerKind, ModelInfo, ServedModel
from planners.plan import LaunchPlan, Shortfall
from planners.reasons import Reason
from planners.rpc import servers_of
from planners.settings import PlacementRules
from planners.sizes import format_size
from planners.speed import NOTHING_LEARNED, Learned, Rates, rates

MOST_ANEW = 4  # times a shape is laid out around its own buffers; two did for what was tried
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
    search = _Search(
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
    ranked = preferred(engines, order=rules.backends)
    placed = search.best(ranked)
    if could_free:
        roomier = search.modest(freed(hardware, could_free)).undoubting().best(ranked)
        if roomier is not None and (placed is None or roomier.is_worth_more_than(placed)):
            return search.lacking(roomier)
    return Unplaced(search, ranked) if placed is None else search.plan(placed)


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A model for which no room was found now."""

    _search: "_Search"
    _engines: tuple[Engine, ...]

    def answer(self) -> LaunchPlan | Shortfall:
        """What it lacks: a search of its own, on an idle machine; a plan where it lacks nothing."""
        return self._search.smallest(self._engines)


@dataclass(frozen=True, slots=True)
class _Search:
    """One model against one machine."""

    served: ServedModel
    asked: Asked
    hardware: HardwareProfile
    promised: Mapping[DeviceId, int]
    held: Mapping[DeviceId, int]
    n_threads: int
    rates: Rates
    measures: Measures
    drawings: Drawings
    learned: Learned
    allows_cpu_fallback: bool
    dry_runs: DryRuns = NO_DRY_RUNS

    @property
    def prediction(self) -> Prediction:
        """What launches of the model take here."""
        return Prediction(
            self.served, self.hardware, self.dry_runs, self.learned, n_threads=self.n_threads
        )

    @property
    def info(self) -> ModelInfo:
        """The model's facts."""
        return self.served.info

    def modest(self, hardware: HardwareProfile) -> "_Search":
        """The same for another state of the machine, with no context for which to evict others."""
        contexts = self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS)
        return replace(self, hardware=hardware, asked=replace(self.asked, contexts=contexts))

    def undoubting(self) -> "_Search":
        """The same, for what fits by its upper bounds alone."""
        return replace(self, dry_runs=replace(self.dry_runs, are_made=False))

    def best(self, engines: tuple[Engine, ...]) -> Placed | None:
        """The fastest placement, of equals by the first engine that has it.

        The search goes by estimates; the graph of the winner alone is drawn. Where it does not fit
        then, it is laid out anew around its buffers, or the next one takes its place.
        """
        ways = [*(self._on_devices(engine) for engine in engines), self._likely_on_host(engines)]
        heads = [next(way, None) for way in ways]
        settled: dict[int, Placed] = {}
        while (found := fastest(heads)) is not None:
            i = next(i for i, head in enumerate(heads) if head is found)
            if found is settled.get(i):
                return found
            if (exact := self._settled(found)) is not None:
                heads[i] = settled[i] = exact
            else:
                heads[i] = next(ways[i], None)
        return None

    def _settled(self, found: Placed) -> Placed | None:
        """`found` as it fits by the best there is to know; None where it does not."""
        other = self._reordered(found)
        drawn = self._drawn(found)
        tries = (drawn,) if other is found else (self._drawn(other), drawn)
        for placed in tries:
            if (accepted := self._accepted(placed)) is not None:
                return accepted
        is_worth_it = found.shape.split and self.prediction.is_better_than_estimates
        return self._laid_out_anew(drawn) if is_worth_it else None

    def _accepted(self, placed: Placed) -> Placed | None:
        """`placed` where it fits, in doubt where only a dry run can tell."""
        if not placed.missing_bytes(placed.room):
            return placed
        may_tell = self.prediction.may_be_run_dry(placed.engine, placed.shape)
        if not may_tell:
            return None
        parts = self.prediction.if_confirmed(placed.engine, placed.room, placed.shape)
        if replace(placed, predicted=parts).missing_bytes(placed.room):
            return None
        return replace(placed, doubt=self.prediction.dry_run_key(placed.engine, placed.shape))

    def _laid_out_anew(self, placed: Placed) -> Placed | None:
        """The same rung with its layers dealt out around its buffers as drawn."""
        for _ in range(MOST_ANEW):
            layout = around_buffers(placed, self._splitter)
            if layout is None or layout.shape == placed.shape:
                return None
            placed = self._drawn(self._placed(placed.engine, placed.room, layout.shape))
            if (accepted := self._accepted(placed)) is not None:
                return accepted
        return None

    def _reordered(self, placed: Placed) -> Placed:
        """`placed`, or the same with its devices in another order where that is faster and fits."""
        if not placed.shape.split:
            return placed
        layout = self._splitter(placed.room).reordered(placed.shape)
        if layout is None:
            return placed
        other = self._placed(placed.engine, placed.room, layout.shape)
        is_better = other.token_s < placed.token_s and not other.missing_bytes(other.room)
        return other if is_better else placed

    def plan(self, placed: Placed) -> LaunchPlan:
        """The plan, with a prompt cache out of the host memory that is left."""
        shape, engine = placed.shape, placed.engine
        spare = placed.room.host_bytes - placed.host_need_bytes
        cache = prompt_cache(self.info, shape, spare_bytes=spare)
        host, *others = placed.predicted
        host = replace(host, overhead_bytes=host.overhead_bytes + cache.host_bytes)
        predicted = (host, *others)
        names = {budget.device_id: budget.engine_name for budget in placed.room.devices}
        used = [device_id for device_id, _ in shape.split]
        rpc_servers, rpc_names = servers_of(self.hardware, used)
        names |= rpc_names
        settings = self.served.settings
        plan = LaunchPlan(
            model_id=self.served.model_id,
            model_path=self.served.path,
            model_digest=self.info.digest,
            file_key=self.served.file_key,
            backend=engine.backend,
            engine_id=engine.engine_id,
            devices=tuple((device, names[device], layers) for device, layers in shape.split),
            n_ctx=shape.n_ctx,
            n_parallel=shape.n_parallel,
            n_batch=shape.n_batch,
            n_ubatch=shape.n_ubatch,
            n_gpu_layers=shape.n_gpu_layers,
            n_threads=self.n_threads,
            type_k=shape.type_k,
            type_v=shape.type_v,
            flash_attn=shape.flash_attn,
            cache_ram_mib=cache.cache_ram_mib,
            ctx_checkpoints=cache.ctx_checkpoints,
            embedding=shape.embedding,
            mmproj_path=settings.mmproj_path,
            draft_path=settings.draft_path,
            lora_paths=settings.lora_paths,
            extra_flags=settings.flags,
            predicted=predicted,
            reasons=(
                *explained(
                    self.info,
                    self.asked,
                    shape,
                    room=placed.room,
                    predicted=predicted,
                    cache=cache,
                    rates=self.rates,
                    speed=placed.speed,
                ),
                *self._fallbacks(placed),
                *told_by_dry_runs(placed, self.prediction),
                *self._rung(engine).reasons(),
            ),
            n_cpu_moe=shape.n_cpu_moe,
            swa_full=shape.swa_full,
            rpc_servers=rpc_servers,
            predicted_prompt_tokens_per_s=placed.speed.prompt_tokens_per_s,
            predicted_decode_tokens_per_s=placed.speed.decode_tokens_per_s,
            doubt=placed.doubt,
        )
        is_known = key_of(plan) in self.learned.lessons
        unlearned = replace(self.prediction, learned=NOTHING_LEARNED)
        before = (
            unlearned.of(placed.engine, placed.room, shape, is_drawn=True)
            if is_known
            else placed.predicted
        )
        return taught(plan, before, self.learned)

    def _fallbacks(self, placed: Placed) -> tuple[Reason, ...]:
        exact = self.prediction.exact(placed.engine, placed.shape)
        return fallbacks(self.info, exact, layer_devices(self.info, exact))

    def smallest(self, engines: tuple[Engine, ...]) -> LaunchPlan | Shortfall:
        """What is missing for the smallest acceptable plan, be it on an idle machine."""
        if not engines:
            return Shortfall(self.served.model_id, {}, "no llama-server runs on this machine")
        contexts = self.asked.contexts[-1:]
        idle = replace(
            self.undoubting(),
            asked=replace(self.asked, contexts=contexts),
            hardware=emptied(self.hardware),
            promised=_NOTHING,
            held=_NOTHING,
            drawings=Drawings(),
        )
        fits_idle = idle.best(engines)
        if fits_idle is not None:
            return self.lacking(fits_idle)
        if not self.allows_cpu_fallback:
            return Shortfall(self.served.model_id, {}, NO_FALLBACK)
        *_, least = idle._on_host(engines)
        return self.lacking(self._drawn(least))

    def lacking(self, placed: Placed) -> LaunchPlan | Shortfall:
        """What `placed` lacks now; its plan where that is nothing."""
        shape, room = placed.shape, self._room(placed.engine)
        missing = placed.missing_bytes(room)
        if not missing:
            return self.plan(replace(placed, room=room))
        where = f"{shape.n_gpu_layers} of {self.info.n_layer + 1} layers on devices"
        needs = sum(part.upper_bytes for part in placed.predicted)
        reason = (
            f"{format_size(needs)} are needed for context {shape.n_ctx_seq} × {shape.n_parallel} "
            f"with {where if shape.split else 'all layers on the processor'}"
        )
        return Shortfall(self.served.model_id, missing, reason)

    def _room(self, engine: Engine) -> Budgets:
        promised = Counter(self.promised)
        promised.update(self._rung(engine).hidden_bytes)
        return budgets(self.hardware, backend=engine.backend, promised=promised, held=self.held)

    def _rung(self, engine: Engine) -> Rung:
        key = RungKey(self.info.digest, engine.engine_id)
        return self.learned.rungs.get(key, Rung())

    def _on_devices(self, engine: Engine) -> Iterator[Placed]:
        """Ways with a device that fit as far as the search can tell, best first."""
        room = self._room(engine)
        shapes = self._offloaded(room) if room.devices else ()
        return self._likely(self._placed(engine, room, shape) for shape in shapes)

    def _likely_on_host(self, engines: tuple[Engine, ...]) -> Iterator[Placed]:
        return self._likely(self._on_host(engines))

    def _likely(self, ways: Iterable[Placed]) -> Iterator[Placed]:
        """Those that fit by the estimate, or that a closer look may find to fit."""
        if self.prediction.is_better_than_estimates:
            return (placed for placed in ways if placed.may_fit)
        return (placed for placed in ways if not placed.missing_bytes(placed.room))

    def _splitter(self, room: Budgets) -> Splitter:
        return Splitter(
            self.measures,
            room.devices,
            self.rates,
            companion_bytes=self.prediction.companion_upper_bytes,
            host_room_bytes=room.host_bytes,
        )

    def _offloaded(self, room: Budgets) -> Iterator[LaunchShape]:
        """Shapes with a split that fits the devices, best first."""
        splitter = self._splitter(room)
        is_hopeful = self.prediction.is_better_than_estimates

        def has_room(shape: LaunchShape) -> bool:
            return splitter.host_has_room(shape, with_estimates=not is_hopeful)

        def lay_out(how: LayOut, shape: LaunchShape) -> Layout | None:
            return hopefully(how, shape, splitter) if is_hopeful else how(splitter, shape)

        for types in self.asked.types if splitter.holds_weights else ():
            for context in self.asked.contexts:
                for shape in self._shapes(context, types, devices=room.devices):
                    if not has_room(shape):
                        continue
                    if (full := lay_out(Splitter.full, shape)) is not None:
                        rival = None if splitter.is_host_slower else splitter.partial(shape)
                        yield from _faster_first(full, rival)
        has_experts = any(layer.expert_bytes for layer in self.info.layers)
        types = self.asked.types[-1]  # conceded before an expert leaves its device
        for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
            for shape in self._lean_shapes(context, types, devices=room.devices):
                if not has_room(shape):
                    continue
                if (sparse := lay_out(Splitter.sparse, shape)) is not None:
                    yield from _faster_first(sparse, splitter.partial(shape))
        for context in self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS):
            for shape in self._lean_shapes(context, types, devices=room.devices):
                if not has_room(shape):
                    continue
                found = lay_out(Splitter.partial, shape)
                if found is None:
                    return  # a smaller context is for want of host memory, never to gain a layer
                lean = (
                    splitter.partial(replace(shape, n_cpu_moe=self.info.n_layer))
                    if has_experts
                    else None
                )
                yield from _faster_first(found, lean)

    def _on_host(self, engines: tuple[Engine, ...]) -> Iterator[Placed]:
        """Ways without a device, best first, by a CPU build where there is one."""
        if not self.allows_cpu_fallback:
            return
        for engine in sorted(engines, key=lambda engine: engine.backend != "cpu")[:1]:
            room = self._room(engine)
            for types in self.asked.types:
                for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
                    for shape in self._shapes(context, types, devices=()):
                        yield self._placed(engine, room, shape)

    def _lean_shapes(
        self, context: int, types: tuple[str, str], *, devices: tuple[Budget, ...]
    ) -> Iterator[LaunchShape]:
        """Only the widest ubatch: with weights on the host every ubatch copies them anew."""
        shapes = tuple(self._shapes(context, types, devices=devices))
        widest = max(shape.n_ubatch for shape in shapes)
        return (s for s in shapes if s.n_ubatch == widest and not s.swa_full)

    def _shapes(
        self, context: int, types: tuple[str, str], *, devices: tuple[Budget, ...]
    ) -> Iterator[LaunchShape]:
        """Shapes of one context without a split: whole windows first, then ubatches by size."""
        ask = self.asked
        known = {device_id: self.rates[device_id] for device_id in (HOST, *_ids(devices))}
        sizes = ubatches(ask, self.info, context=context, rates=known)
        has_windows = any(layer.kind is LayerKind.SWA for layer in self.info.layers)
        for swa_full in (True, False) if has_windows else (False,):
            for size in sizes:
                yield LaunchShape(
                    n_ctx=context * ask.n_parallel,
                    n_parallel=ask.n_parallel,
                    n_batch=size,
                    n_ubatch=size,
                    type_k=types[0],
                    type_v=types[1],
                    flash_attn=ask.flash_attn,
                    embedding=ask.embedding,
                    swa_full=swa_full,
                )

    def _placed(self, engine: Engine, room: Budgets, shape: LaunchShape) -> Placed:
        """A way by the estimate of its buffers."""
        predicted = self.prediction.of(engine, room, shape, is_drawn=False)
        return Placed(engine, room, shape, predicted, self.measures.speed(shape, self.rates))

    def _drawn(self, placed: Placed) -> Placed:
        """The same with its buffers as the engine reserves them, and as it was seen to."""
        if not self.drawings.has_one_more():
            return placed
        engine, room, shape = placed.engine, placed.room, placed.shape
        return replace(placed, predicted=self.prediction.of(engine, room, shape, is_drawn=True))


def _faster_first(one: Layout, other: Layout | None) -> Iterable[LaunchShape]:
    """The faster layout, `one` of equals, then the other: its buffers may find room yet."""
    layouts = [one] if other is None else sorted((one, other), key=lambda each: each.cost_ps)
    return dict.fromkeys(layout.shape for layout in layouts)


def _ids(devices: tuple[Budget, ...]) -> Iterator[DeviceId]:
    return (budget.device_id for budget in devices)
