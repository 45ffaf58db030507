"""Where a model goes: engine, devices, layers, context and batch, out of what is free.

The fastest placement that gives what was asked. Where it does not fit, concessions in this order:
a smaller ubatch, whole windows (`swa_full`), the automatic context rung by rung, experts to the
host, layers to the host, the processor alone. What the operator fixed is never lowered: there is a
Shortfall then. Placement makes room for the upper bound of every estimate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planners.backends import Engine, preferred
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.layout.asked import (
    CONTEXT_ON_HOST,
    CONTEXT_WORTH_LAYERS,
    Asked,
    asked,
    n_threads,
    ubatches,
)
from planners.layout.budget import Budget, Budgets, budgets, emptied, freed
from planners.layout.explanation import explained
from planners.layout.layer_split import Splitter, companion_device
from planners.layout.prompt_cache import prompt_cache
from planners.memory import host_overhead_bytes, predict
from planners.model import LayerKind, ModelInfo, ServedModel
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.settings import PlacementRules
from planners.sizes import format_size

COMPANION_MARGIN = 0.5  # of a projector's weights: its compute buffers, which nobody reports
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
) -> LaunchPlan | Shortfall:
    """The best launch within the room there is, or what is missing for an acceptable one.

    `promised`: bytes spoken for though they count as free. `held`: bytes of our running instances,
    which count against limits. `could_free`: bytes that idle instances could give back; where they
    would bring more layers onto devices, the answer is the Shortfall that eviction closes.
    Raises PlanError where the rules name an unknown KV cache type.
    """
    search = _Search(served, asked(served, rules=rules), hardware, promised, held)
    ranked = preferred(engines, order=rules.backends)
    placed = search.best(ranked)
    if could_free:
        roomier = search.modest(freed(hardware, could_free)).best(ranked)
        if roomier is not None and (placed is None or roomier.off_host > placed.off_host):
            return search.lacking(roomier)
    return search.shortfall(ranked) if placed is None else search.plan(placed)


@dataclass(frozen=True, slots=True)
class _Placed:
    """One way to launch, not yet a plan."""

    engine: Engine
    room: Budgets
    shape: LaunchShape
    predicted: tuple[DeviceBytes, ...]

    @property
    def off_host(self) -> tuple[int, int]:
        """Layers on devices, then how few of them leave their experts behind: more is faster."""
        return self.shape.n_gpu_layers, -self.shape.n_cpu_moe

    def missing_bytes(self, room: Budgets) -> dict[DeviceId, int]:
        """By how much it exceeds `room`, where it does."""
        needs = {part.device_id: part.upper_bytes for part in self.predicted}
        needs[HOST] = self.host_need_bytes
        over = {device_id: need - room.room_bytes(device_id) for device_id, need in needs.items()}
        return {device_id: n_bytes for device_id, n_bytes in over.items() if n_bytes > 0}

    @property
    def host_need_bytes(self) -> int:
        """Host memory it takes, on devices that share it too."""
        on_host = {HOST, *(b.device_id for b in self.room.devices if b.shares_host)}
        return sum(part.upper_bytes for part in self.predicted if part.device_id in on_host)


@dataclass(frozen=True, slots=True)
class _Search:
    """One model against one machine."""

    served: ServedModel
    asked: Asked
    hardware: HardwareProfile
    promised: Mapping[DeviceId, int]
    held: Mapping[DeviceId, int]

    @property
    def info(self) -> ModelInfo:
        """The model's facts."""
        return self.served.info

    def modest(self, hardware: HardwareProfile) -> "_Search":
        """The same for another state of the machine, with no context for which to evict others."""
        contexts = self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS)
        return replace(self, hardware=hardware, asked=replace(self.asked, contexts=contexts))

    def best(self, engines: tuple[Engine, ...]) -> _Placed | None:
        """The placement with most layers on devices, by the first engine that has it."""
        found = [placed for engine in engines if (placed := self._on_devices(engine)) is not None]
        if found:
            return max(found, key=lambda placed: placed.off_host)
        return next((p for p in self._on_host(engines) if not p.missing_bytes(p.room)), None)

    def plan(self, placed: _Placed) -> LaunchPlan:
        """The plan, with a prompt cache out of the host memory that is left."""
        shape, engine = placed.shape, placed.engine
        spare = placed.room.host_bytes - placed.host_need_bytes
        cache = prompt_cache(self.info, shape, spare_bytes=spare)
        host, *others = placed.predicted
        host = replace(host, overhead_bytes=host.overhead_bytes + cache.host_bytes)
        predicted = (host, *others)
        names = {budget.device_id: budget.engine_name for budget in placed.room.devices}
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
            n_threads=n_threads(self.hardware.host),
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
            reasons=explained(
                self.info, self.asked, shape, room=placed.room, predicted=predicted, cache=cache
            ),
            n_cpu_moe=shape.n_cpu_moe,
            swa_full=shape.swa_full,
        )

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
        *_, smallest = idle._on_host(engines)
        return self.lacking(smallest)

    def lacking(self, placed: _Placed) -> Shortfall:
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

    def _on_devices(self, engine: Engine) -> _Placed | None:
        room = self._room(engine)
        if not room.devices:
            return None
        ways = (self._placed(engine, room, shape) for shape in self._offloaded(room.devices))
        return next((placed for placed in ways if not placed.missing_bytes(room)), None)

    def _offloaded(self, devices: tuple[Budget, ...]) -> Iterator[LaunchShape]:
        """Shapes with a split that fits the devices, best first."""
        splitter = Splitter(self.info, devices, companion_bytes=self._companion_upper_bytes())
        for context in self.asked.contexts:
            for shape in self._shapes(context, on_device=True):
                if split := splitter.full(shape):
                    yield replace(shape, split=split)
        for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
            for shape in self._lean_shapes(context):
                if (found := splitter.sparse(shape)) is not None:
                    yield found
        for context in self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS):
            for shape in self._lean_shapes(context):
                if not (split := splitter.partial(shape)):
                    return  # a smaller context is for want of host memory, never to gain a layer
                yield replace(shape, split=split)

    def _on_host(self, engines: tuple[Engine, ...]) -> Iterator[_Placed]:
        """Ways without a device, best first, by a CPU build where there is one."""
        for engine in sorted(engines, key=lambda engine: engine.backend != "cpu")[:1]:
            room = self._room(engine)
            for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
                for shape in self._shapes(context, on_device=False):
                    yield self._placed(engine, room, shape)

    def _lean_shapes(self, context: int) -> Iterator[LaunchShape]:
        """Only the widest ubatch: with weights on the host every ubatch copies them anew."""
        widest = max(shape.n_ubatch for shape in self._shapes(context, on_device=True))
        for shape in self._shapes(context, on_device=True):
            if shape.n_ubatch == widest and not shape.swa_full:
                yield shape

    def _shapes(self, context: int, *, on_device: bool) -> Iterator[LaunchShape]:
        """Shapes of one context without a split: whole windows first, then ubatches by size."""
        ask = self.asked
        sizes = ubatches(
            ask, self.info, context=context, host=None if on_device else self.hardware.host
        )
        has_windows = any(layer.kind is LayerKind.SWA for layer in self.info.layers)
        for swa_full in (True, False) if has_windows else (False,):
            for size in sizes:
                yield LaunchShape(
                    n_ctx=context * ask.n_parallel,
                    n_parallel=ask.n_parallel,
                    n_batch=size,
                    n_ubatch=size,
                    type_k=ask.type_k,
                    type_v=ask.type_v,
                    flash_attn=ask.flash_attn,
                    embedding=ask.embedding,
                    swa_full=swa_full,
                )

    def _placed(self, engine: Engine, room: Budgets, shape: LaunchShape) -> _Placed:
        overhead = {budget.device_id: budget.overhead_bytes for budget in room.devices}
        overhead[HOST] = host_overhead_bytes(self.info)
        predicted = predict(self.info, shape, overhead_bytes=overhead)
        used = {device_id for device_id, _ in shape.split}
        devices = [budget for budget in room.devices if budget.device_id in used]
        companion = companion_device(devices) if devices else HOST
        return _Placed(engine, room, shape, tuple(self._joined(p, companion) for p in predicted))

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
