"""How many threads a child computes with: physical cores, as far as each one earns its barriers.

Never SMT siblings (two share one set of multipliers) nor more than a quota allows: llama.cpp's
threads spin at every barrier, and one that must share its core stalls all of them. Of more than
two cores one is left to others, for the same reason, and so that they spin at all: threads that
take every CPU sleep at each barrier, and wake each other two dozen times in a layer
(planners.lessons.rates). Of two, one is half the machine: the second joins where it saves a step
more than its wake-ups cost, and what one costs is a matter of the machine. Measured on two of two
CPUs, 135M Q4_1, decode tokens/s in one slot: 150 on one thread, 35 to 91 on two where a wake-up
takes 22 to 30 microseconds; on another machine 87 and 135, which comes to 2.
"""

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, HardwareProfile
from planners.lessons.rates import rates
from planners.model import ModelInfo
from planners.reasons import Reason, ReasonKind
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

    return max({1, _most(hardware)}, key=lambda count: (tokens_per_s(count), -count))


def _cores(hardware: HardwareProfile) -> int:
    return max(1, min(hardware.host.n_physical_cores, hardware.host.n_cores))


def _most(hardware: HardwareProfile) -> int:
    """All cores of two, else all but one."""
    cores = _cores(hardware)
    return cores - 1 if cores > 2 else cores


def threads_reason(hardware: HardwareProfile, *, count: int) -> Reason:
    """Why there are so many, as `n_threads` counted them."""
    cores, most, wake_s = _cores(hardware), _most(hardware), hardware.host.wake_s
    told = f"{count} thread{'' if count == 1 else 's'} for {cores} core{'' if cores == 1 else 's'}"
    waking = "" if wake_s is None else f"; waking another core takes {wake_s * 1e6:.0f} µs here"
    if count < most:
        told += f": {most} would decode no faster{waking}"
    elif most < cores:
        told += ": one is left to all else, for which threads on every core would wait"
    elif cores > 1:
        told += f": one alone would decode more slowly{waking}"
    return Reason(ReasonKind.THREADS, told)
