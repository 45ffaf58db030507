"""What a launch keeps between tokens: KV cache and recurrent state, in bytes. Exact.

The rules are those of llama-kv-cache.cpp and llama-memory-recurrent.cpp (b11434), checked against
launches of llama-server b10434.
"""

from msgspec import Struct

from planners.ggml.types import CACHE_TYPES, TensorType
from planners.graph.kinds import kinds
from planners.hardware import DeviceId
from planners.model import LayerInfo, LayerKind, ModelInfo

F32_BYTES = 4
CELL_STEP = 256  # llama-context.cpp pads the context to it


class LaunchShape(Struct, frozen=True):
    """The part of a plan that decides its bytes. Numbers are as the engine will use them."""

    n_ctx: int
    """Tokens over all slots."""
    n_parallel: int
    n_batch: int
    n_ubatch: int
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    gave_up_flash_attn: bool = False
    """`-fa auto` that the engine resolved to off: its cache was laid out before, as for on."""
    embedding: bool = False
    kv_unified: bool = False
    swa_full: bool = False
    n_cpu_moe: int = 0
    kv_on_host: bool = False
    """`--no-kv-offload`: every layer's cache lies in host memory."""
    op_offload: bool = True
    """Whether devices take over large products with weights in host memory."""
    on_host: tuple[str, ...] = ()
    """`-ot PATTERN=CPU`: regular expressions of tensors that stay in host memory."""
    binding_limits: tuple[tuple[DeviceId, int], ...] = ()
    """Bytes of the largest tensor that a device can bind, where that is known."""
    backend: str = ""
    """The engine's backend ("vulkan", "cuda"…), whose limits and order of work count."""
    host_tiles: bool = False
    """Whether the engine lays out the host's weights for tiles (AMX); see planners.graph.repack."""
    split: tuple[tuple[DeviceId, int], ...] = ()
    """Layers per device in `--device` order, the output layer counted with the last."""

    @property
    def n_gpu_layers(self) -> int:
        """Layers off the host, the output layer included."""
        return sum(layers for _, layers in self.split)

    @property
    def has_plain_v(self) -> bool:
        """Whether V lies row by row in the cache, not transposed."""
        return self.flash_attn or self.gave_up_flash_attn

    @property
    def n_stream(self) -> int:
        """KV caches side by side: one per slot unless they share."""
        return 1 if self.kv_unified else self.n_parallel

    @property
    def n_ctx_seq(self) -> int:
        """Tokens that one slot's cache holds."""
        return self.n_ctx // self.n_stream


def padded_context(context: int) -> int:
    """Tokens that the engine allocates for a slot of `context` tokens."""
    return padded(context, CELL_STEP)


def padded(n: int, step: int) -> int:
    """`n`, rounded up to a multiple of `step`."""
    return -(-n // step) * step


def layer_kv_bytes(model: ModelInfo, layer: LayerInfo, shape: LaunchShape) -> int:
    """Bytes of one layer's KV cache over all slots (llama-kv-cache.cpp, b11434)."""
    cells = kv_cells(model, layer, shape) * shape.n_stream
    v_width = layer.v_width
    if v_width and not shape.has_plain_v:
        # A transposed V is as wide in every layer as in the widest.
        v_width = max(other.v_width for other in model.layers)
    k, v = cache_type(shape.type_k), cache_type(shape.type_v)
    rows = k.row_bytes(layer.k_width) + v.row_bytes(v_width)
    indexed = k.row_bytes(layer.index_width) + v.row_bytes(layer.index_v_width)
    return cells * (rows + indexed)


def kv_cells(model: ModelInfo, layer: LayerInfo, shape: LaunchShape) -> int:
    """Tokens that one layer keeps per stream."""
    if layer.kind not in (LayerKind.FULL, LayerKind.SWA):
        return 0
    if layer.kind is LayerKind.FULL or shape.swa_full:
        return shape.n_ctx_seq
    sequences = shape.n_parallel if shape.kv_unified else 1
    window = model.sliding_window * sequences + shape.n_ubatch
    return padded(min(shape.n_ctx_seq, window), CELL_STEP)


def kv_cache_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Bytes of KV cache over all layers and slots."""
    return sum(kept_bytes(model, shape)) - state_bytes(model, shape)


def layer_state_bytes(layer: LayerInfo, shape: LaunchShape) -> int:
    """Bytes of one layer's recurrent state over all slots; the context does not matter."""
    return F32_BYTES * layer.state_width * shape.n_parallel


def kept_bytes(model: ModelInfo, shape: LaunchShape) -> list[int]:
    """Bytes that each layer keeps over all slots: KV cache and recurrent state."""
    known: dict[tuple[LayerKind, *tuple[int, ...]], int] = {}  # unlike ones mostly keep as much
    unlike = kinds(model)
    found = []
    for layer in unlike.layers:
        kind = (
            layer.kind, layer.k_width, layer.v_width, layer.index_width, layer.index_v_width,
            layer.state_width,
        )  # fmt: skip
        if (n_bytes := known.get(kind)) is None:
            n_bytes = layer_kv_bytes(model, layer, shape) + layer_state_bytes(layer, shape)
            known[kind] = n_bytes
        found.append(n_bytes)
    return [found[number] for number in unlike.numbers]


def state_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Bytes of recurrent state over all layers and slots."""
    return F32_BYTES * shape.n_parallel * sum(layer.state_width for layer in model.layers)


def checkpoint_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Host bytes of one context checkpoint of one slot; 0 where the engine makes none.

    A checkpoint holds what cannot be cut back: recurrent state, and windows that moved on.
    """
    windows = 0
    if not shape.swa_full:
        kept = zip(model.layers, kept_bytes(model, shape), strict=True)
        windows = sum(
            n_bytes - layer_state_bytes(layer, shape)
            for layer, n_bytes in kept
            if layer.kind is LayerKind.SWA
        )
    return (windows + state_bytes(model, shape)) // shape.n_parallel


def cache_type(name: str) -> TensorType:
    """The type of a KV cache by its name. Raises KeyError; placement checks names first."""
    return CACHE_TYPES[name]
