"""The buffer sizes that a child logs while it loads (`-lv 4`), as bytes per device.

`load_tensors:      Vulkan0 model buffer size =    68.85 MiB`
"""

import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from planners.hardware import HOST, DeviceId
from planners.plan import DeviceBytes, LaunchPlan
from planners.rpc import device_of_buffer

_MIB = 1 << 20
_MAPPED = "CPU_Mapped"
TILES = "AMX"  # of a processor with tiles, which has its own form of weights (ggml-cpu/amx)
_REPACKED = ("CPU_REPACK", TILES)
# Bounded repeats: a child's log is not ours to trust.
_LINE = re.compile(
    r"(?:^|\s)(\w{1,64}): {1,32}(\S{1,160}) {1,8}(model|KV|RS|output|compute) buffer size = {0,16}"
    r"(\d{1,9}\.\d{1,6}) MiB"
)


class BufferKind(Enum):
    """What a buffer holds, in the log's words."""

    MODEL = "model"
    KV = "KV"
    RS = "RS"
    OUTPUT = "output"
    COMPUTE = "compute"


class BufferLine(Struct, frozen=True):
    """One buffer as logged."""

    source: str
    """The function that logged it: "load_tensors", "llama_kv_cache"."""
    device: str
    """As the engine names the buffer: "Vulkan0", "CPU_Mapped", "Vulkan_Host"."""
    kind: BufferKind
    n_bytes: int


def parse_buffer_line(line: str) -> BufferLine | None:
    """The buffer that a log line tells of, None for any other line."""
    is_likely = "buffer size" in line  # a tenth of the pattern's price, over a whole log
    match = _LINE.search(line[:500]) if is_likely else None
    if match is None:
        return None
    source, device, kind, mib = match.groups()
    return BufferLine(source, device, BufferKind(kind), round(float(mib) * _MIB))


def measured(lines: Iterable[BufferLine], plan: LaunchPlan) -> tuple[DeviceBytes, ...]:
    """What the child reported, per device of the plan and HOST, those without a buffer left out.

    Lines add up, except that a compute or output buffer that is reserved anew replaces the former,
    and that of mapped weights only what the host reads counts.
    """
    names = {name: device_id for device_id, name, _ in plan.devices}
    latest: dict[tuple[DeviceId, str, BufferKind], int] = {}
    totals: Counter[tuple[DeviceId, BufferKind]] = Counter()
    spans: Counter[str] = Counter()
    for line in lines:
        device_id = _owner(line.device, names)
        if line.kind in (BufferKind.COMPUTE, BufferKind.OUTPUT):
            key = (device_id, line.device, line.kind)
            totals[device_id, line.kind] += line.n_bytes - latest.get(key, 0)
            latest[key] = line.n_bytes
        else:
            totals[device_id, line.kind] += line.n_bytes
            spans[line.device] += line.n_bytes if line.kind is BufferKind.MODEL else 0
    if plan.predicted and (unread := _unread_bytes(spans, totals, plan)):
        totals[HOST, BufferKind.MODEL] -= unread
    seen = dict.fromkeys(device_id for device_id, _ in totals)
    ordered = [device_id for device_id in (HOST, *names.values()) if device_id in seen]
    others = [device_id for device_id in seen if device_id not in ordered]
    return tuple(_summed(device_id, totals) for device_id in (*ordered, *others))


def _unread_bytes(
    spans: Counter[str], totals: Counter[tuple[DeviceId, BufferKind]], plan: LaunchPlan
) -> int:
    """Bytes of logged mapped weights that the host has no use for once the model is loaded.

    A file is mapped, and logged, from its first host tensor to its last, with the devices' tensors
    between them (llama-model-loader.cpp, get_mapping_range), and with those that were
    repacked into a buffer of their own. Such pages are the page cache's, clean and reclaimable.
    """
    of_devices = sum(
        n_bytes
        for (device_id, kind), n_bytes in totals.items()
        if kind is BufferKind.MODEL and device_id != HOST
    )
    of_host = sum(part.weights_bytes for part in plan.predicted) - of_devices
    repacked = sum(spans[name] for name in _REPACKED)
    return max(0, spans[_MAPPED] - max(0, of_host - repacked))


def unmapped_bytes(lines: Iterable[BufferLine]) -> int:
    """Bytes of host weights that are the process's own, not pages of the model's file."""
    return sum(
        line.n_bytes
        for line in lines
        if line.kind is BufferKind.MODEL
        and line.device != _MAPPED
        and _owner(line.device, {}) == HOST
    )


def _owner(device: str, names: dict[str, DeviceId]) -> DeviceId:
    """The device whose memory a buffer takes; one outside of the plan keeps its own name."""
    if device in names:
        return names[device]
    if (remote := device_of_buffer(device)) is not None:
        return remote
    if device.startswith(("CPU", "BLAS", "AMX")) or device.endswith("_Host"):
        return HOST
    return DeviceId(device)


def _summed(device_id: DeviceId, totals: Counter[tuple[DeviceId, BufferKind]]) -> DeviceBytes:
    def bytes_of(*kinds: BufferKind) -> int:
        return sum(totals[device_id, kind] for kind in kinds)

    return DeviceBytes(
        device_id=device_id,
        weights_bytes=bytes_of(BufferKind.MODEL),
        kv_bytes=bytes_of(BufferKind.KV, BufferKind.RS),
        compute_bytes=bytes_of(BufferKind.COMPUTE, BufferKind.OUTPUT),
    )
