"""What a model may be launched as, best first: planners.placement's concessions in order. Pure."""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.layout.around import LayOut, hopefully
from planners.layout.asked import CONTEXT_ON_HOST, CONTEXT_WORTH_LAYERS, Asked, ubatches
from planners.layout.budget import Budget
from planners.layout.layer_split import Layout, Splitter
from planners.lessons.rates import Rates
from planners.model import LayerKind, ModelInfo

# A larger automatic context, or windows kept whole, may slow a launch down by a fifth, not more.
WORTH_MUCH = 1.25


class Shapes(Struct, frozen=True):
    """What one model may be launched as: context, KV types, ubatch, windows, layers."""

    info: ModelInfo
    asked: Asked
    rates: Rates

    def on_devices(self, splitter: Splitter, *, is_hopeful: bool) -> Iterator[LaunchShape]:
        """Shapes with a split that fits the splitter's devices.

        `is_hopeful`: those too that its estimate of buffers alone stands against.
        """
        tries = _Tries(self, splitter, is_hopeful=is_hopeful)
        yield from tries.whole()
        yield from tries.with_experts_on_host()
        yield from tries.with_layers_on_host()

    def on_host(self) -> Iterator[LaunchShape]:
        """Shapes for the processor alone."""
        for types in self.asked.types:
            for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
                yield from self.of(context, types, devices=())

    def of(
        self, context: int, types: tuple[str, str], *, devices: tuple[Budget, ...]
    ) -> Iterator[LaunchShape]:
        """Shapes of one context without a split: whole windows first, then ubatches by size."""
        ask = self.asked
        ids = (budget.device_id for budget in devices)
        known = {device_id: self.rates[device_id] for device_id in (HOST, *ids)}
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

    def lean(
        self, context: int, types: tuple[str, str], *, devices: tuple[Budget, ...]
    ) -> Iterator[LaunchShape]:
        """Only the widest ubatch: with weights on the host every ubatch copies them anew."""
        shapes = tuple(self.of(context, types, devices=devices))
        widest = max(shape.n_ubatch for shape in shapes)
        return (s for s in shapes if s.n_ubatch == widest and not s.swa_full)


class _Tries(Struct, frozen=True):
    """The shapes that one set of devices is tried with."""

    shapes: Shapes
    splitter: Splitter
    is_hopeful: bool

    @property
    def asked(self) -> Asked:
        return self.shapes.asked

    def whole(self) -> Iterator[LaunchShape]:
        """All layers on devices, and of each the same with fewer where that is faster.

        Those that are dear last: a modest context and nothing whole would be much faster.
        """
        for types in self.asked.types if self.splitter.holds_weights else ():
            dear: list[Layout] = []
            modest_ps: int | None = None
            for context in self.asked.contexts:
                shapes = self.shapes.of(context, types, devices=self.splitter.devices)
                for shape in self._with_room(shapes):
                    if (full := self._laid_out(Splitter.full, shape)) is None:
                        continue
                    if self._is_uneven(full):
                        modest_ps = modest_ps or self._modest_ps(types) or full.cost_ps
                    if modest_ps is not None and full.cost_ps > modest_ps * WORTH_MUCH:
                        dear.append(full)
                    else:
                        yield from self._with_rival(full)
            for full in dear:
                yield from self._with_rival(full)

    def _with_rival(self, full: Layout) -> Iterable[LaunchShape]:
        splitter = self.splitter
        rival = None if splitter.is_host_slower else splitter.partial(replace(full.shape, split=()))
        return _faster_first(full, rival)

    def _is_uneven(self, full: Layout) -> bool:
        """Whether it uses devices of which some are much slower."""
        rates = [self.shapes.rates[device_id] for device_id, _ in full.shape.split]
        speeds = [rate.bytes_per_s for rate in rates]
        return max(speeds) > min(speeds) * WORTH_MUCH

    def _modest_ps(self, types: tuple[str, str]) -> int | None:
        """The cost of the least context that is no concession yet, its windows not kept whole."""
        context = self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS)[0]
        shapes = self.shapes.of(context, types, devices=self.splitter.devices)
        shape = next(shape for shape in shapes if not shape.swa_full)
        layout = self._laid_out(Splitter.full, shape)
        return None if layout is None else layout.cost_ps

    def with_experts_on_host(self) -> Iterator[LaunchShape]:
        """All layers on devices, without as many of the first ones' experts as it takes."""
        for context in self.asked.contexts_up_to(CONTEXT_ON_HOST):
            for shape in self._lean(context):
                if (sparse := self._laid_out(Splitter.sparse, shape)) is not None:
                    yield from _faster_first(sparse, self.splitter.partial(shape))

    def with_layers_on_host(self) -> Iterator[LaunchShape]:
        """A prefix of the layers on the host, with and without every expert there."""
        info = self.shapes.info
        has_experts = any(layer.expert_bytes for layer in info.layers)
        for context in self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS):
            for shape in self._lean(context):
                found = self._laid_out(Splitter.partial, shape)
                if found is None:
                    return  # a smaller context is for want of host memory, never to gain a layer
                without = replace(shape, n_cpu_moe=info.n_layer)
                lean = self.splitter.partial(without) if has_experts else None
                yield from _faster_first(found, lean)

    def _lean(self, context: int) -> Iterator[LaunchShape]:
        types = self.asked.types[-1]  # conceded before an expert leaves its device
        return self._with_room(self.shapes.lean(context, types, devices=self.splitter.devices))

    def _with_room(self, shapes: Iterable[LaunchShape]) -> Iterator[LaunchShape]:
        """Those for which the host has room, whatever devices take."""
        with_estimates = not self.is_hopeful
        return (s for s in shapes if self.splitter.host_has_room(s, with_estimates=with_estimates))

    def _laid_out(self, how: LayOut, shape: LaunchShape) -> Layout | None:
        if self.is_hopeful:
            return hopefully(how, shape, self.splitter)
        return how(self.splitter, shape)


def _faster_first(one: Layout, other: Layout | None) -> Iterable[LaunchShape]:
    """The faster layout, `one` of equals, then the other: its buffers may find room yet."""
    layouts = [one] if other is None else sorted((one, other), key=lambda each: each.cost_ps)
    return dict.fromkeys(layout.shape for layout in layouts)
