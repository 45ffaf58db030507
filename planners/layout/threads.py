"""How many threads a child computes with: physical cores, as far as each one earns its barriers.

Never SMT siblings (two share one set of multipliers) nor more than a quota allows: llama.cpp's
threads spin at every barrier, and one that must share its core stalls all of them. Of more than
two cores one is left to others, for the same reason. Of two, one is half the machine: the second
joins where a step's arithmetic is long enough. Measured on two cores, 135M Q4_1, decode tokens/s on
one and on two threads: 150 and 87 in one slot, 102 and 136 in two.
"""

from planners.hardware import HOST, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.model import ModelInfo
from planners.rates import rates
from planners.speed import USED_TOKENS, loads, speed


def n_threads(hardware: HardwareProfile, model: ModelInfo, *, n_parallel: int) -> int:
    """The count with the fastest predicted decode of all slots; of equals the least.

    By default rates alone: a learned one is of the count that it was learned with.
    """
    shape = LaunchShape(USED_TOKENS * n_parallel, n_parallel, n_batch=64, n_ubatch=64)
    asked = loads(model, shape)

    def tokens_per_s(count: int) -> float:
        host = rates(hardware, n_threads=count)[HOST]
        return speed(model, shape, rates={HOST: host}, asked=asked).decode_tokens_per_s

    cores = max(1, min(hardware.host.n_physical_cores, hardware.host.n_cores))
    most = cores - 1 if cores > 2 else cores
    return max({1, most}, key=lambda count: (tokens_per_s(count), -count))
