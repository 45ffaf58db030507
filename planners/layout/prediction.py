"""What one way to launch a model takes, by the best there is to know of it. Pure.

Companions count, too: the projector, the draft model and the adapters.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine
from planners.graph.fallback import binding_limits
from planners.graph.kinds import kinds
from planners.graph.kv_cache import LaunchShape
from planners.graph.repack import repacks
from planners.graph.reservation import is_drawn as has_known_graph
from planners.graph.reservation import is_known
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.layout.budget import Budgets
from planners.layout.dry_runs import DryRunKey, DryRuns, Reserved, Told
from planners.layout.layer_split import companion_device
from planners.lessons.learning import corrected as as_seen
from planners.lessons.learning import overheads
from planners.lessons.samples import LaunchKey, Learned, key_of_shape
from planners.memory import (
    host_overhead_bytes,
    joined,
    output_buffer_bytes,
    output_growth_bytes,
    predict,
    predict_draft,
)
from planners.model import ServedModel
from planners.plan import DeviceBytes
from planners.preflight import corrected, is_told_of, measures

COMPANION_MARGIN = 0.5  # of a projector's weights: its compute buffers, which nobody reports


class Prediction(Struct, frozen=True):
    """The bytes of one model's launches on one machine."""

    served: ServedModel
    hardware: HardwareProfile
    dry_runs: DryRuns
    learned: Learned
    n_threads: int

    def of(
        self, engine: Engine, room: Budgets, shape: LaunchShape, *, is_drawn: bool
    ) -> tuple[DeviceBytes, ...]:
        """By the estimate; where `is_drawn`, by the graph, a dry run, and launches before it."""
        if not is_drawn:
            return self._of(engine, room, shape, is_drawn=False, told=None)
        told = self.dry_runs.of(self.dry_run_key(engine, shape))
        predicted = self._of(engine, room, shape, is_drawn=True, told=told)
        lesson = self.learned.lessons.get(self._launch_key(engine, shape))
        if lesson is None:
            return predicted
        return as_seen(predicted, lesson, has_companions=self._companion_bytes > 0)

    def if_confirmed(
        self, engine: Engine, room: Budgets, shape: LaunchShape
    ) -> tuple[DeviceBytes, ...]:
        """As the graph has it, and a dry run told the very same."""
        parts = predict(self.served.info, self.exact(engine, shape), overhead_bytes={})
        sizes = {part.device_id: part.compute_bytes for part in parts}
        sizes[HOST] -= output_buffer_bytes(self.served.info, shape)
        told = {device_id: Reserved(size, size) for device_id, size in sizes.items()}
        return self._of(engine, room, shape, is_drawn=True, told=told)

    def _of(
        self,
        engine: Engine,
        room: Budgets,
        shape: LaunchShape,
        *,
        is_drawn: bool,
        told: Told | None,
    ) -> tuple[DeviceBytes, ...]:
        overhead = self._overheads(engine, room)
        exact = self.exact(engine, shape)
        predicted = predict(self.served.info, exact, overhead_bytes=overhead, is_drawn=is_drawn)
        if told is not None:
            predicted = self._as_told(shape, predicted, told)
        used = {device_id for device_id, _ in shape.split}
        devices = [budget for budget in room.devices if budget.device_id in used]
        companion = companion_device(devices) if devices else HOST
        if self.served.draft is not None:
            draft = predict_draft(self.served.draft, exact, device_id=companion, is_drawn=is_drawn)
            predicted = joined(predicted, draft)
        return tuple(self._joined(part, companion) for part in predicted)

    def _overheads(self, engine: Engine, room: Budgets) -> Mapping[DeviceId, int]:
        overhead = {budget.device_id: budget.overhead_bytes for budget in room.devices}
        overhead[HOST] = host_overhead_bytes(self.served.info)
        return overheads(overhead, self.learned, engine_id=engine.engine_id)

    def exceeds(
        self, engine: Engine, room: Budgets, shape: LaunchShape, sizes: Sequence[int]
    ) -> bool:
        """True where weights and caches alone are too much for a device; quickly told.

        `sizes`: of the shape's layers. False, too, where some weights may stay on the host.
        """
        if shape.n_cpu_moe or kinds(self.served.info).scans or binding_limits(self.hardware):
            return False
        overhead = self._overheads(engine, room)
        rooms = {budget.device_id: budget.room_bytes for budget in room.devices}
        begin = len(sizes) - shape.n_gpu_layers
        for device_id, layers in shape.split:
            own = sum(sizes[begin : begin + layers])
            begin += layers
            if own + overhead[device_id] > rooms[device_id]:
                return True
        return False

    def exact(self, engine: Engine, shape: LaunchShape) -> LaunchShape:
        """`shape` with what the engine and the devices add to the decision of its bytes."""
        return replace(
            shape,
            backend=engine.backend,
            binding_limits=binding_limits(self.hardware),
            host_tiles=repacks(self.served, engine=engine) and engine.has_tiles,
        )

    def dry_run_key(self, engine: Engine, shape: LaunchShape) -> DryRunKey:
        """What a dry run of that launch is known by."""
        settings = self.served.settings
        files = (settings.mmproj_path or "", settings.draft_path or "", *settings.lora_paths)
        return DryRunKey(
            engine.engine_id, self.served.info.digest, shape, settings=(*files, *settings.flags)
        )

    def _launch_key(self, engine: Engine, shape: LaunchShape) -> LaunchKey:
        """As planners.lessons.samples.key_of the plan."""
        return key_of_shape(
            shape,
            self.served.settings,
            engine_id=engine.engine_id,
            model_digest=self.served.info.digest,
            n_threads=self.n_threads,
        )

    def may_be_run_dry(self, engine: Engine, shape: LaunchShape) -> bool:
        """Whether a dry run would tell something new of that launch."""
        key = self.dry_run_key(engine, shape)
        return (
            measures(engine)
            and is_told_of((device for device, _ in shape.split), is_known=self._is_known)
            and self.dry_runs.may_tell(key, self.served.model_id)
        )

    @property
    def _is_known(self) -> bool:
        """Whether the graph that is drawn is the model's own."""
        return is_known(self.served.info)

    @property
    def is_better_than_estimates(self) -> bool:
        """Whether more can be known of a launch than the estimate that a search goes by."""
        return self.dry_runs.are_made or has_known_graph(self.served.info)

    @property
    def companion_upper_bytes(self) -> int:
        """What companions take, their buffers included; without the draft model's cache."""
        return int(self._companion_bytes * (1 + COMPANION_MARGIN))

    @property
    def _companion_bytes(self) -> int:
        """Weights of the projector, the draft model and the adapters."""
        settings = self.served.settings
        if not (settings.mmproj_path or settings.draft_path or settings.lora_paths):
            return 0
        return max(0, self.served.size_bytes - self.served.info.file_bytes)

    def _as_told(
        self, shape: LaunchShape, predicted: tuple[DeviceBytes, ...], told: Told
    ) -> tuple[DeviceBytes, ...]:
        output = output_buffer_bytes(self.served.info, shape)
        growth = output_growth_bytes(self.served.info, shape)
        return corrected(
            predicted, told, output_bytes=output, growth_bytes=growth, is_known=self._is_known
        )

    def _joined(self, part: DeviceBytes, companion: DeviceId) -> DeviceBytes:
        """`part` with the companions on top, where they go there."""
        if part.device_id != companion:
            return part
        weights = self._companion_bytes
        return replace(
            part,
            weights_bytes=part.weights_bytes + weights,
            margin_bytes=part.margin_bytes + self.companion_upper_bytes - weights,
        )
