"""A shape laid out by what its buffers take rather than by the estimate of them. Pure."""

from collections.abc import Callable

from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.layout.budget import Budgets
from planners.layout.layer_split import Layout, Splitter, companion_device
from planners.layout.placed import Placed
from planners.memory import host_overhead_bytes

LayOut = Callable[[Splitter, LaunchShape], Layout | None]


def hopefully(lay_out: LayOut, shape: LaunchShape, splitter: Splitter) -> Layout | None:
    """As the estimate has it; where that refuses, as it were if no buffer took anything."""
    if (layout := lay_out(splitter, shape)) is not None:
        return layout
    assumed = splitter.measures.compute_bytes(shape, n_gpu_layers=1)
    wider = (replace(b, room_bytes=b.room_bytes + assumed) for b in splitter.devices)
    return lay_out(replace(splitter, devices=tuple(wider)), shape)


def around_buffers(placed: Placed, splitter_in: Callable[[Budgets], Splitter]) -> Layout | None:
    """The same way laid out again, if each device it uses keeps its buffers as they are.

    `splitter_in`: a splitter for that room. Layers that were not to stay on the host never do.
    """
    shape, room, usual = placed.shape, placed.room, splitter_in(placed.room)
    bare = replace(shape, split=())
    assumed = usual.measures.compute_bytes(bare, n_gpu_layers=shape.n_gpu_layers)
    companion = companion_device([b for b in room.devices if b.device_id in dict(shape.split)])
    parts = {part.device_id: part for part in placed.predicted}
    sizes = usual.measures.sizes(shape)
    end = len(sizes) - shape.n_gpu_layers
    changed = {HOST: _host_change(placed, usual, prefix_bytes=sum(sizes[:end]))}
    for device_id, layers in shape.split:
        fixed = parts[device_id].upper_bytes - sum(sizes[end : end + layers])
        end += layers
        taken = (
            usual.companion_bytes + usual.measures.draft_bytes(bare)
            if device_id == companion
            else 0
        )
        changed[device_id] = assumed + taken + parts[device_id].overhead_bytes - fixed
    splitter = splitter_in(room.changed_by(changed))
    return splitter.full(bare) if shape.n_gpu_layers == len(sizes) else splitter.partial(bare)


def _host_change(placed: Placed, splitter: Splitter, *, prefix_bytes: int) -> int:
    """By how much the host's room is other than the splitter takes it to be.

    The splitter knows of no buffers there, and of no device that shares it.
    """
    info, n_lean = splitter.info, placed.shape.n_cpu_moe
    assumed = host_overhead_bytes(info) + info.input_bytes
    assumed += sum(layer.expert_bytes for layer in info.layers[:n_lean])
    host = next(part for part in placed.predicted if part.device_id == HOST)
    missing = placed.missing_bytes(placed.room).get(HOST, 0)
    return min(-missing, assumed - (host.upper_bytes - prefix_bytes))
