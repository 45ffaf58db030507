"""Measured launches, one JSON object a line: what was asked, what the engine reported."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from bench.planner.drafts import ALL_BLOCKS
from bench.planner.engine import TWINS
from bench.planner.flags import Asked, NotModelled, asked, launch_shape
from planners.errors import PlanError
from planners.ggml.header import GgufArray, GgufError, GgufHeader, Scalar, Tensor
from planners.ggml.layers import is_expert
from planners.ggml.types import TENSOR_TYPES
from planners.gguf import model_info
from planners.graph.buffers import TILES
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.model import ModelInfo
from tests.fakes.model_facts import Facts
from tests.fakes.recipes import KNOWN, is_f32, n_elements, tensors

ODD = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, MemoryError,
    GgufError, PlanError,
)  # fmt: skip
"""What a row from elsewhere may end in, wherever it is odd."""
_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
NOT_SERVED = ("t5",)  # llama-server b10434 loads it and aborts at the first decode
_TYPES = (
    "q8_0", "q4_0", "f16", "q4_1", "mxfp4", "q6_k", "q5_k", "q4_k", "q3_k", "f32", "bf16", "q5_0",
    "q5_1", "q2_k",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reported:
    """Bytes that the engine reported on one device."""

    weights_bytes: int
    kv_bytes: int
    output_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.weights_bytes + self.kv_bytes + self.output_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One launch."""

    name: str
    model: ModelInfo
    shape: LaunchShape
    draft: tuple[ModelInfo, LaunchShape] | None
    actual: Mapping[DeviceId, Reported]
    """On HOST without weights where a file is mapped: its span is no allocation."""
    is_dry: bool
    """Measured by a dry run: weights and caches to 1 MiB, weights moved by the device's limits."""


@dataclass(frozen=True, slots=True)
class Left:
    """A row that cannot be judged, and why."""

    name: str
    reason: str


def read_rows(lines: Iterable[str]) -> Iterator[Row | Left]:
    """Every row of a table. A line that is no row is told, never raised."""
    told = [(i, line) for i, line in enumerate(lines, start=1) if line.strip()]
    parsed: list[tuple[int, Any]] = []
    for i, line in told:
        try:
            parsed.append((i, json.loads(line)))
        except ValueError:
            parsed.append((i, None))
    shapes = {
        str(row["model"]): row["gguf"]
        for _, row in parsed
        if isinstance(row, dict) and isinstance(row.get("gguf"), dict) and "model" in row
    }
    for i, row in parsed:
        yield _row(f"line {i}", row, shapes)


def _row(at: str, row: Any, shapes: Mapping[str, Any]) -> Row | Left:
    if not isinstance(row, dict):
        return Left(at, "no JSON object")
    flags = row.get("flags")
    words = map(str, flags) if isinstance(flags, list) else (str(flags),)
    name = " ".join((str(row.get("id", at)), str(row.get("model", "?")), *words))
    if not row.get("ok", True):
        return Left(name, f"did not load: {row.get('error')}")
    try:
        return _judgeable(name, row, shapes)
    except NotModelled as exc:
        return Left(name, f"not modelled: {exc}")
    except ODD as exc:
        return Left(name, f"odd row: {type(exc).__name__}: {exc}")


def _judgeable(name: str, row: dict[str, Any], shapes: Mapping[str, Any]) -> Row:
    options = asked([str(flag) for flag in row["flags"]])
    model = rebuilt(row["gguf"] if "gguf" in row else shapes[str(row["model"])])
    if model.architecture in NOT_SERVED:
        raise NotModelled(f"{model.architecture}, which loads and then aborts")
    told = row.get("resolved", {}).get("fa_resolved")
    shape = shape_of(options, model, row["buffers"], told=None if told is None else str(told))
    devices = [device for device, _ in shape.split]
    draft = None
    if (path := options.last("-md")) is not None:
        stem = path.rsplit("/", 1)[-1].removesuffix(".gguf")
        if stem not in shapes:
            raise NotModelled(f"draft model {stem}, which no row describes")
        companion = rebuilt(shapes[stem])
        draft = (companion, launch_shape(options, companion, devices=devices))
    is_dry = row.get("source") == "fit-noalloc"
    return Row(name, model, shape, draft, actual_bytes(row["buffers"]), is_dry)


def shape_of(
    options: Asked, model: ModelInfo, buffers: Iterable[str], *, told: str | None
) -> LaunchShape:
    """A launch as the engine made it; `told`: its word on flash attention, where it gave one."""
    shape = launch_shape(options, model, devices=_devices(options))
    if told is not None and "-fa" not in options.values:
        is_on = "enabled" in told
        shape = replace(shape, flash_attn=is_on, gave_up_flash_attn=not is_on)
    return replace(shape, host_tiles=TILES in buffers)


def _devices(options: Asked) -> list[DeviceId]:
    """What the engine would use: remote devices first, as it orders them."""
    if options.last("--device") == "none":
        return []
    remote = (options.last("--rpc") or "").split(",")
    found = {f"RPC{i}": DeviceId(f"rpc:{server}") for i, server in enumerate(remote) if server}
    named = options.last("--device")
    if named is None:
        return [*found.values(), DeviceId("Vulkan0")]
    found |= {name: DeviceId(name) for name in (f"Vulkan{i}" for i in range(TWINS))}
    if not found.keys() >= {*named.split(",")}:
        raise NotModelled(f"--device {named}")
    return [found[name] for name in named.split(",")]


def actual_bytes(buffers: Mapping[str, Mapping[str, float]]) -> Mapping[DeviceId, Reported]:
    """What each device took, by the buffers of the log."""
    found: dict[DeviceId, dict[str, int]] = {}
    is_mapped = any(name.endswith("_Mapped") for name in buffers)
    for name, sizes in buffers.items():
        device = _owner(name)
        held = found.setdefault(device, {})
        for kind, n_bytes in sizes.items():
            if device == HOST and kind == "model" and is_mapped:
                continue
            held[kind] = held.get(kind, 0) + int(n_bytes)
    return {device: _reported(sizes) for device, sizes in found.items()}


def _reported(sizes: Mapping[str, int]) -> Reported:
    exact = sizes.get("compute_exact")
    return Reported(
        weights_bytes=sizes.get("model", 0),
        kv_bytes=sizes.get("KV", 0) + sizes.get("RS", 0) + sizes.get("context", 0),
        output_bytes=sizes.get("output", 0),
        compute_bytes=sizes.get("compute", 0) if exact is None else exact,
    )


def _owner(name: str) -> DeviceId:
    if name.startswith("RPC"):
        return DeviceId("rpc:" + name.partition("[")[2].rstrip("]"))
    if name.startswith(("CPU", TILES)) or name == "Host" or name.endswith("_Host"):
        return HOST
    return DeviceId(name)


def rebuilt(told: Mapping[str, Any]) -> ModelInfo:
    """The model of a row: its metadata as a header, its tensors from the architecture's recipe."""
    pairs: dict[str, Scalar | GgufArray] = {}
    for key, value in told["kv"].items():
        if key == "n_vocab":
            pairs["tokenizer.ggml.tokens"] = GgufArray(value, None)
        else:
            pairs[key] = GgufArray(len(value), tuple(value)) if isinstance(value, list) else value
    found = _tensors(told)
    return model_info([GgufHeader(3, pairs, tuple(found), "", told["file_bytes"], ())])


def _tensors(told: Mapping[str, Any]) -> list[Tensor]:
    if "tensors" in told:
        return [*_spelled_out(told)]
    arch, outside = told["kv"]["general.architecture"], told["nonlayer_bytes"]
    if arch not in KNOWN:
        return _sums(told)
    facts = Facts(told["kv"], int(told["kv"]["n_vocab"]))
    named = tensors(facts, is_tied="output.weight" not in outside)
    if "types" in told:
        return [_tensor(n, s, told_type) for (n, s), told_type in
                zip(named, told["types"], strict=True)]  # fmt: skip
    found = [Tensor(n, s, 0, outside[n]) for n, s in named if n in outside]
    for i, (layer, experts) in enumerate(
        zip(told["layer_bytes"], told["layer_exps_bytes"], strict=True)
    ):
        own = [(n, s) for n, s in named if f"blk.{i}." in n]
        routed = [(n, s) for n, s in own if is_expert(n)]
        dense = [(n, s) for n, s in own if not is_expert(n)]
        found += _typed(routed, experts)
        found += _typed(dense, layer - experts)
    return found


def _spelled_out(told: Mapping[str, Any]) -> Iterator[Tensor]:
    """Tensors that the row names, those of all blocks alike once."""
    n_layer = told["kv"][f"{told['kv']['general.architecture']}.block_count"]
    for name, (shape, type_name) in told["tensors"].items():
        blocks = range(n_layer) if f".{ALL_BLOCKS}." in name else (0,)
        for i in blocks:
            yield _tensor(name.replace(ALL_BLOCKS, str(i)), tuple(shape), type_name)


def _tensor(name: str, shape: tuple[int, ...], type_name: str) -> Tensor:
    number = _NUMBERS[type_name]
    return Tensor(name, shape, number, TENSOR_TYPES[number].row_bytes(n_elements(shape)))


def _typed(named: list[tuple[str, tuple[int, ...]]], total: int) -> list[Tensor]:
    """Tensors with the bytes of the one type that sums up; in proportion where none does."""
    for name in _TYPES:
        sizes = [_bytes(n, s, name) for n, s in named]
        if sum(sizes) == total:
            return [Tensor(n, s, 0, b) for (n, s), b in zip(named, sizes, strict=True)]
    elements = sum(n_elements(s) for _, s in named)
    return [Tensor(n, s, 0, total * n_elements(s) // max(elements, 1)) for n, s in named]


def _bytes(name: str, shape: tuple[int, ...], type_name: str) -> int:
    kind = next(t for t in TENSOR_TYPES.values() if t.name == type_name)
    if is_f32(name, shape):
        kind = TENSOR_TYPES[0]
    elif shape[0] % kind.block:
        kind = TENSOR_TYPES[1]
    return kind.row_bytes(n_elements(shape))


def _sums(told: Mapping[str, Any]) -> list[Tensor]:
    """One tensor a layer: all that is known of an architecture without a recipe."""
    found = [Tensor(name, (), 0, n_bytes) for name, n_bytes in told["nonlayer_bytes"].items()]
    for i, (layer, experts) in enumerate(
        zip(told["layer_bytes"], told["layer_exps_bytes"], strict=True)
    ):
        found.append(Tensor(f"blk.{i}.attn_q.weight", (), 0, layer - experts))
        if experts:
            found.append(Tensor(f"blk.{i}.ffn_up_exps.weight", (), 0, experts))
    return found
