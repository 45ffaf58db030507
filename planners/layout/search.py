"""The search for the fastest way to launch one model that fits one machine. Pure.

It goes by estimates of the buffers; what it finds is looked at closely before it counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.ladder import Rung, RungKey
from planners.layout.around import around_buffers
from planners.layout.asked import CONTEXT_WORTH_LAYERS, Asked
from planners.layout.budget import Budgets, boundless, budgets, emptied
from planners.layout.dry_runs import NO_DRY_RUNS, DryRuns
from planners.layout.layer_split import Splitter
from planners.layout.measures import Drawings, Measures
from planners.layout.placed import Placed, fastest
from planners.layout.prediction import Prediction
from planners.layout.shapes import Shapes
from planners.lessons.rates import Rates
from planners.lessons.samples import Learned
from planners.model import ModelInfo, ServedModel

MOST_ANEW = 4  # times a shape is laid out around its own buffers; two did for what was tried
_NOTHING: Mapping[DeviceId, int] = MappingProxyType({})


class Search(Struct, frozen=True):
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

    @property
    def shapes(self) -> Shapes:
        """What it may be launched as."""
        return Shapes(self.info, self.asked, self.rates)

    def modest(self, hardware: HardwareProfile) -> "Search":
        """The same for another state of the machine, with no context for which to evict others."""
        contexts = self.asked.contexts_up_to(CONTEXT_WORTH_LAYERS)
        return replace(self, hardware=hardware, asked=replace(self.asked, contexts=contexts))

    def undoubting(self) -> "Search":
        """The same, for what fits by its upper bounds alone."""
        return replace(self, dry_runs=replace(self.dry_runs, are_made=False))

    def alone(self) -> "Search":
        """The same for the least that is acceptable, on a machine that the model has to itself."""
        return replace(
            self.undoubting(),
            asked=replace(self.asked, contexts=self.asked.contexts[-1:]),
            hardware=emptied(self.hardware),
            promised=_NOTHING,
            held=_NOTHING,
            drawings=Drawings(),
        )

    def on_endless_host(self) -> "Search":
        """The same by estimates on a host whose memory never ends."""
        return replace(self, hardware=boundless(self.hardware), drawings=Drawings().stop())

    def best(self, engines: tuple[Engine, ...]) -> Placed | None:
        """The fastest placement, of engines that are alike by the first that has it.

        The search goes by estimates; the graph of the winner alone is drawn. Where it does not fit
        then, it is laid out anew around its buffers, or the next one takes its place.
        """
        ways = [
            *(self._on_devices(engine) for engine in engines),
            self._likely(self._likely_on_host(engines)),
        ]
        heads = [next(way, None) for way in ways]
        settled: dict[int, Placed] = {}
        while (found := fastest(heads)) is not None:
            i = next(i for i, head in enumerate(heads) if head is found)
            if found is settled.get(i):
                before = heads[:i] if found.shape.split else []
                over = next((head for head in before if head is not None), None)
                return replace(found, passed_over=over)
            if (exact := self._settled(found)) is not None:
                heads[i] = settled[i] = exact
            else:
                heads[i] = next(ways[i], None)
        return None

    def on_host(self, engines: tuple[Engine, ...]) -> Iterator[Placed]:
        """Ways without a device, best first, by a CPU build where there is one."""
        for engine in self._for_processor(engines):
            room = self.room(engine)
            for shape in self.shapes.on_host():
                yield self._placed(engine, room, shape)

    def _likely_on_host(self, engines: tuple[Engine, ...]) -> Iterator[Placed]:
        """The same, but none where the weights alone find no room there, which is quickly told."""
        own = self.measures.weights_bytes + self.info.input_bytes - self.info.tied_bytes
        rooms = (self.room(engine) for engine in self._for_processor(engines))
        return self.on_host(engines) if any(own <= r.room_bytes(HOST) for r in rooms) else iter(())

    def _for_processor(self, engines: tuple[Engine, ...]) -> Sequence[Engine]:
        """The engine that runs without a device, if any may."""
        first = sorted(engines, key=lambda engine: engine.backend != "cpu")[:1]
        return first if self.allows_cpu_fallback else ()

    def room(self, engine: Engine) -> Budgets:
        """What it may take of each device by what is known, memory that hid itself left out."""
        promised = Counter(self.promised)
        promised.update(self.rung(engine).hidden_bytes)
        return budgets(self.hardware, backend=engine.backend, promised=promised, held=self.held)

    def rung(self, engine: Engine) -> Rung:
        """What launches that ran out of memory taught of this engine."""
        key = RungKey(self.info.digest, engine.engine_id)
        return self.learned.rungs.get(key, Rung())

    def drawn(self, placed: Placed) -> Placed:
        """The same with its buffers as the engine reserves them, and as it was seen to."""
        if not self.drawings.has_one_more():
            return placed
        engine, room, shape = placed.engine, placed.room, placed.shape
        return replace(placed, predicted=self.prediction.of(engine, room, shape, is_drawn=True))

    def _settled(self, found: Placed) -> Placed | None:
        """`found` as it fits by the best there is to know; None where it does not."""
        other = self._reordered(found)
        if other is not found and (accepted := self._accepted(self.drawn(other))) is not None:
            return accepted
        drawn = self.drawn(found)
        if (accepted := self._accepted(drawn)) is not None:
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
        """The same way with its layers dealt out around its buffers as drawn."""
        for _ in range(MOST_ANEW):
            layout = around_buffers(placed, self._splitter)
            if layout is None or layout.shape == placed.shape:
                return None
            placed = self.drawn(self._placed(placed.engine, placed.room, layout.shape))
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

    def _on_devices(self, engine: Engine) -> Iterator[Placed]:
        """Ways with a device that fit as far as the search can tell, best first."""
        room = self.room(engine)
        if not room.devices:
            return iter(())
        is_hopeful = self.prediction.is_better_than_estimates
        shapes = self.shapes.on_devices(self._splitter(room), is_hopeful=is_hopeful)
        prediction, sizes = self.prediction, self.measures.sizes
        small = (s for s in shapes if not prediction.exceeds(engine, room, s, sizes(s)))
        return self._likely(self._placed(engine, room, shape) for shape in small)

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

    def _placed(self, engine: Engine, room: Budgets, shape: LaunchShape) -> Placed:
        """A way by the estimate of its buffers."""
        predicted = self.prediction.of(engine, room, shape, is_drawn=False)
        return Placed(engine, room, shape, predicted, self.measures.speed(shape, self.rates))
