"""What a device runs of operations that not all of them run (ggml-vulkan.cpp, b11434)."""

from planners.graph.fallback import can_scan
from planners.graph.tensors import Node
from planners.model import ModelInfo

VULKAN = "vulkan"
RESTRICTED = frozenset({"ssm_scan", "gated_delta_net", "flash_attn", "mul_mat"})
_DELTA_WIDTHS = (16, 32, 64, 128)  # of V's heads (GATED_DELTA_NET)
_HEAD_STEP = 8  # FLASH_ATTN_EXT


def runs(node: Node, *, is_vulkan: bool, mixes_bf16: bool) -> bool:
    """Whether a local device runs one of the operations that not all devices run as all others."""
    match node.op:
        case "ssm_scan":
            return _can_scan(node)
        case "gated_delta_net":
            return not is_vulkan or node.src[2].ne[0] in _DELTA_WIDTHS
        case "flash_attn":
            return not is_vulkan or _can_attend(node, mixes_bf16=mixes_bf16)
        case "mul_mat":
            return not is_vulkan or _can_multiply(*node.src)
        case _:
            return True


def _can_multiply(a: Node, b: Node) -> bool:
    """Vulkan repeats no weight over streams, and reads no quantised rows with gaps (MUL_MAT)."""
    if a.ne[3] != b.ne[3]:
        return False
    is_quantised = not float(a.size).is_integer()
    has_gaps = a.nb[1] != a.nb[0] * a.ne[0] or (a.ne[3] > 1 and a.nb[3] != a.nb[2] * a.ne[2])
    return not (is_quantised and has_gaps)


def _can_attend(node: Node, *, mixes_bf16: bool) -> bool:
    """Vulkan attends over bf16 only where K and V are (ggml-vulkan.cpp, FLASH_ATTN_EXT)."""
    _, k, v, *_ = node.src
    return not mixes_bf16 and attends_over(k.ne[0], v.ne[0])


def attends_over(k_width: int, v_width: int) -> bool:
    """Whether Vulkan attends over heads of such widths."""
    return not k_width % _HEAD_STEP and not v_width % _HEAD_STEP


def fuses_delta_net(model: ModelInfo) -> bool:
    """Whether Vulkan has the one operation for the model's delta nets."""
    ssm = model.recurrent
    return ssm is not None and ssm.n_head > 0 and ssm.d_inner // ssm.n_head in _DELTA_WIDTHS


def _can_scan(node: Node) -> bool:
    kept, decay = node.src[0], node.src[3]
    return can_scan(is_mamba_2=decay.ne[0] == 1, d_state=kept.ne[0], head=kept.ne[1])
