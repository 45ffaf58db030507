"""Where a model goes: engine, devices, layers, context and batch, out of what is free.

The fastest placement, by planners.speed, that gives what was asked. Where it does not fit,
concessions in this order: the prompt cache (it takes what is left), a smaller ubatch, whole windows
(`swa_full`), the automatic context rung by rung, an automatic KV type (f16, q8_0), experts to the
host, layers to the host, the processor alone. An automatic number of slots is one: there is none to
concede. What the operator fixed is never lowered: there is a Shortfall then. Placement makes room
for the upper bound of every estimate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planners.backends import Engine, preferred
from planners.fallback import binding_limits, fallbacks
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.layout.asked import (
    CONTEXT_ON_HOST,
    CONTEXT_WORTH_LAYERS,
    Asked,
    asked,
    ubatches,
)
from planners.layout.budget import Budget, Budgets, budgets, emptied, freed
from planners.layout.explanation import explained
from planners.layout.layer_split import Layout, Splitter, companion_device
from planners.layout.placed import Placed, fastest
from planners.layout.prompt_cache import prompt_cache
from planners.layout.threads import n_threads
from planners.memory import host_overhead_bytes, joined, layer_devices, predict, predict_draft
from planners.model import LayerKind, ModelInfo, ServedModel
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.reasons import Reason
from planners.rpc import servers_of
from planners.settings import PlacementRules
from planners.sizes import format_size
from planners.speed import NOTHING_LEARNED, Learned, Rates, rates, speed

COMPANION_MARGIN = 0.5  # of a projector's weights: its compute buffers, which nobody reports
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
) -> LaunchPlan | Shortfall:
    """The best launch within the room there is, or what is missing for an acceptable one.

    `promised`: bytes spoken for though they count as free. `held`: bytes of our running instances,
    which count against limits. `could_free`: bytes that idle instances could give back; where they
    would make the launch faster, the answer is the Shortfall that eviction closes. `learned`: rates
    observed here. Raises PlanError where the rules name an unknown KV cache type.
    """
    answer = attempt_launch(
        served, hardware=hardware, engines=engines, rules=rules, promised=promised, held=held,
        could_free=could_free, learned=learned,
    )  # fmt: skip
    return answer.shortfall() if isinstance(answer, Unplaced) else answer


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
    most_context: int | None = None,
) -> "LaunchPlan | Shortfall | Unplaced":
    """As `plan_launch`, but what is missing for a model without a place is left to be asked for.

    `most_context`: no automatic context above it, for the sake of other models.
    """
    ask = asked(served, rules=rules).held_to(most_context)
    threads = n_threads(hardware, served.info, n_parallel=ask.n_parallel)
    search = _Search(
        served,
        ask,
        hardware,
        promised,
        held,
        n_threads=threads,
        rates=rates(hardware, n_threads=threads, learned=learned),
        allows_cpu_fallback=rules.allows_cpu_fallback,
    )
    ranked = preferred(engines, order=rules.backends)
    placed = search.best(ranked)
    if could_free:
        roomier = search.modest(freed(hardware, could_free)).best(ranked)
        if roomier is not None and (placed is None or roomier.is_worth_more_than(placed)):
            return search.lacking(roomier)
    return Unplaced(search, ranked) if placed is None else search.plan(placed)


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A model for which there is no room now."""

    _search: "_Search"
    _engines: tuple[Engine, ...]

    def shortfall(self) -> Shortfall:
        """What it lacks: a search of its own, on an idle machine."""
        return self._search.shortfall(self._engines)


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
    allows_cpu_fallback: bool

    @property
    def info(self) -> ModelInfo:
        """The model's facts."""
        return self.served.info

    def modest(self, hardware: HardwareProfile) -> "_Search":
        """The same for another state of the machine, with no context for which to evict others."""
        contexts = self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS)
        return replace(self, hardware=hardware, asked=replace(self.asked, contexts=contexts))

    def best(self, engines: tuple[Engine, ...]) -> Placed | None:
        """The fastest placement, of equals by the first engine that has it.

        The search goes by estimates; the graph of the winner alone is drawn, and where it does not
        fit then, the next one takes its place.
        """
        ways = [*(self._on_devices(engine) for engine in engines), self._fitting_on_host(engines)]
        heads = [next(way, None) for way in ways]
        while (found := fastest(heads)) is not None:
            for way in (self._reordered(found), found):
                placed = self._drawn(way)
                if not placed.missing_bytes(placed.room):
                    return placed
            i = next(i for i, head in enumerate(heads) if head is found)
            heads[i] = next(ways[i], None)
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
        return LaunchPlan(
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
            ),
            n_cpu_moe=shape.n_cpu_moe,
            swa_full=shape.swa_full,
            rpc_servers=rpc_servers,
            predicted_prompt_tokens_per_s=placed.speed.prompt_tokens_per_s,
            predicted_decode_tokens_per_s=placed.speed.decode_tokens_per_s,
        )

    def _fallbacks(self, placed: Placed) -> tuple[Reason, ...]:
        exact = self._exact(placed.engine, placed.shape)
        return fallbacks(self.info, exact, layer_devices(self.info, exact))

    def shortfall(self, engines: tuple[Engine, ...]) -> Shortfall:
        """What is missing for the smallest acceptable plan, be it on an idle machine."""
        if not engines:
            return Shortfall(self.served.model_id, {}, "no llama-server runs on this machine")
        contexts = self.asked.contexts[-1:]
        idle = replace(
            self,
            asked=replace(self.asked, contexts=contexts),
            hardware=emptied(self.hardware),
            promised=_NOTHING,
            held=_NOTHING,
        )
        fits_idle = idle.best(engines)
        if fits_idle is not None:
            return self.lacking(fits_idle)
        if not self.allows_cpu_fallback:
            return Shortfall(self.served.model_id, {}, NO_FALLBACK)
        *_, smallest = idle._on_host(engines)
        return self.lacking(self._drawn(smallest))

    def lacking(self, placed: Placed) -> Shortfall:
        """What `placed` lacks now."""
        shape = placed.shape
        missing = placed.missing_bytes(self._room(placed.engine))
        where = f"{shape.n_gpu_layers} of {self.info.n_layer + 1} layers on devices"
        needs = sum(part.upper_bytes for part in placed.predicted)
        reason = (
            f"{format_size(needs)} are needed for context {shape.n_ctx_seq} × {shape.n_parallel} "
            f"with {where if shape.split else 'all layers on the processor'}"
        )
        return Shortfall(self.served.model_id, missing, reason)

    def _room(self, engine: Engine) -> Budgets:
        return budgets(
            self.hardware, backend=engine.backend, promised=self.promised, held=self.held
        )

    def _on_devices(self, engine: Engine) -> Iterator[Placed]:
        """Ways with a device that fit by the estimate, best first."""
        room = self._room(engine)
        for shape in self._offloaded(room) if room.devices else ():
            placed = self._placed(engine, room, shape)
            if not placed.missing_bytes(room):
                yield placed

    def _fitting_on_host(self, engines: tuple[Engine, ...]) -> Iterator[Placed]:
        return (p for p in self._on_host(engines) if not p.missing_bytes(p.room))

    def _splitter(self, room: Budgets) -> Splitter:
        return Splitter(
            self.info,
            room.devices,
            rates=self.rates,
            companion_bytes=self._companion_upper_bytes(),
            draft=self.served.draft,
            host_room_bytes=room.host_bytes,
        )

    def _offloaded(self, room: Budgets) -> Iterator[LaunchShape]:
        """Shapes with a split that fits the devices, best first."""
        splitter = self._splitter(room)
        for types in self.asked.types if splitter.holds_weights else ():
            for context in self.asked.contexts:
                for shape in self._shapes(context, types, devices=room.devices):
                    if (full := splitter.full(shape)) is not None:
                        rival = None if splitter.is_host_slower else splitter.partial(shape)
                        yield _faster(full, rival).shape
        has_experts = any(layer.expert_bytes for layer in self.info.layers)
        types = self.asked.types[-1]  # conceded before an expert leaves its device
        for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
            for shape in self._lean_shapes(context, types, devices=room.devices):
                if (sparse := splitter.sparse(shape)) is not None:
                    yield _faster(sparse, splitter.partial(shape)).shape
        for context in self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS):
            for shape in self._lean_shapes(context, types, devices=room.devices):
                found = splitter.partial(shape)
                if found is None:
                    return  # a smaller context is for want of host memory, never to gain a layer
                lean = (
                    splitter.partial(replace(shape, n_cpu_moe=self.info.n_layer))
                    if has_experts
                    else None
                )
                yield _faster(found, lean).shape

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
        predicted = self._predicted(engine, room, shape, is_drawn=False)
        return Placed(engine, room, shape, predicted, speed(self.info, shape, rates=self.rates))

    def _drawn(self, placed: Placed) -> Placed:
        """The same with its buffers as the engine reserves them."""
        engine, room, shape = placed.engine, placed.room, placed.shape
        return replace(placed, predicted=self._predicted(engine, room, shape, is_drawn=True))

    def _predicted(
        self, engine: Engine, room: Budgets, shape: LaunchShape, *, is_drawn: bool
    ) -> tuple[DeviceBytes, ...]:
        overhead = {budget.device_id: budget.overhead_bytes for budget in room.devices}
        overhead[HOST] = host_overhead_bytes(self.info)
        exact = self._exact(engine, shape)
        predicted = predict(self.info, exact, overhead_bytes=overhead, is_drawn=is_drawn)
        used = {device_id for device_id, _ in shape.split}
        devices = [budget for budget in room.devices if budget.device_id in used]
        companion = companion_device(devices) if devices else HOST
        if self.served.draft is not None:
            draft = predict_draft(self.served.draft, exact, device_id=companion, is_drawn=is_drawn)
            predicted = joined(predicted, draft)
        return tuple(self._joined(part, companion) for part in predicted)

    def _exact(self, engine: Engine, shape: LaunchShape) -> LaunchShape:
        """`shape` with what the engine and the devices add to the decision of its bytes."""
        limits = binding_limits(self.hardware)
        return replace(shape, backend=engine.backend, binding_limits=limits)

    def _joined(self, part: DeviceBytes, companion: DeviceId) -> DeviceBytes:
        """`part` with the projector and draft model on top, where they go there."""
        if part.device_id != companion:
            return part
        weights = self._companion_bytes()
        return replace(
            part,
            weights_bytes=part.weights_bytes + weights,
            margin_bytes=part.margin_bytes + self._companion_upper_bytes() - weights,
        )

    def _companion_bytes(self) -> int:
        """Weights of the projector, the draft model and the adapters."""
        settings = self.served.settings
        if not (settings.mmproj_path or settings.draft_path or settings.lora_paths):
            return 0
        return max(0, self.served.size_bytes - self.info.file_bytes)

    def _companion_upper_bytes(self) -> int:
        return int(self._companion_bytes() * (1 + COMPANION_MARGIN))


def _faster(one: Layout, other: Layout | None) -> Layout:
    """The faster layout; `one` of equals."""
    return one if other is None or one.cost_ps <= other.cost_ps else other


def _ids(devices: tuple[Budget, ...]) -> Iterator[DeviceId]:
    return (budget.device_id for budget in devices)
