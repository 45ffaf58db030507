"""How much host memory a child may fill with saved prompts and checkpoints, out of what is spare.

llama-server's defaults, 8 GiB and 32 checkpoints per slot whatever their size, are never left.
"""

from msgspec import Struct

from planners.graph.kv_cache import LaunchShape, checkpoint_bytes, kv_cache_bytes, state_bytes
from planners.model import ModelInfo
from planners.sizes import GIB, MIB

MOST_BYTES = 2 * GIB
KEPT_STATES = 4  # whole contexts: further conversations to come back to without a prefill
CACHE_SHARE = 4  # a fourth of what is spare: the next model wants room too
CHECKPOINT_SHARE = 8
MOST_CHECKPOINTS = 32  # llama-server's default count per slot


class PromptCache(Struct, frozen=True):
    """Bounds for `--cache-ram` and `--ctx-checkpoints`, and the host bytes to fill both."""

    cache_ram_mib: int
    ctx_checkpoints: int
    host_bytes: int


def prompt_cache(info: ModelInfo, shape: LaunchShape, *, spare_bytes: int) -> PromptCache:
    """Bounds such that the cache and its overshoot stay within shares of `spare_bytes`."""
    if shape.embedding:
        return PromptCache(0, 0, 0)
    each = checkpoint_bytes(info, shape) * shape.n_parallel
    count = min(MOST_CHECKPOINTS, max(0, spare_bytes // CHECKPOINT_SHARE) // each) if each else 0
    # The limit is enforced after a save: the peak is one slot's whole state above it.
    one_state = _state_bytes(info, shape)
    room = min(MOST_BYTES, KEPT_STATES * one_state, spare_bytes // CACHE_SHARE - one_state)
    if room < MIB:
        return PromptCache(0, count, count * each)
    cache_ram_mib = room // MIB
    return PromptCache(cache_ram_mib, count, count * each + cache_ram_mib * MIB + one_state)


def saved_prompts_bytes(info: ModelInfo, shape: LaunchShape, cache_ram_mib: int) -> int:
    """What saved prompts take at most, of a child with such a bound."""
    return cache_ram_mib * MIB + _state_bytes(info, shape) if cache_ram_mib else 0


def _state_bytes(info: ModelInfo, shape: LaunchShape) -> int:
    """Of one slot, whole."""
    return (kv_cache_bytes(info, shape) + state_bytes(info, shape)) // shape.n_parallel
