"""How many threads a child computes with: physical cores, as far as each one earns its barriers.

Never SMT siblings (two share one set of multipliers) nor more than a quota allows: llama.cpp's
threads spin at every barrier, and one that must share its core stalls all of them. Of more than
two cores one is left to others, for the same reason, and so that they spin at all: threads that
take every CPU sleep at each barrier, and wake each other two dozen times in a layer
(planners.rates). Of two, one is half the machine: the second joins where it saves a step more than
its wake-ups cost, and what one costs is a matter of the machine. Measured on two of two CPUs, 135M
Q4_1, decode tokens/s in one slot: 150 on one thread, 35 to 91 on two where a wake-up takes 22 to 30
microseconds; on another machine 87 and 135, which comes to 2.
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
