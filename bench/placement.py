"""`python -m bench.placement`: how long placement thinks, on made-up machines of eight devices."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

from planners.hardware import HardwareProfile
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.sizes import MIB
from planners.together import plan_together
from tests.fakes.machines import CPU, CUDA, RULES, VULKAN, machine, model_info, nvidia, served

ENGINES = (CPU, VULKAN, CUDA)
RUNS = 15
EQUAL = machine(*(nvidia(i, 8) for i in range(8)), host_gib=64)
UNEQUAL = machine(*(nvidia(i, 6 + 0.7 * i) for i in range(8)), host_gib=64)


def _model(name: str, layer_mib: int, *, expert_mib: int = 0) -> ServedModel:
    info = model_info(n_layer=100, layer_bytes=layer_mib * MIB, expert_bytes=expert_mib * MIB)
    return replace(served(info), model_id=ModelId(name))


MODELS = (
    _model("fits", 400),
    _model("too large", 700),
    _model("experts", 700, expert_mib=600),
)


def main() -> None:
    """Print the table: least and median milliseconds."""
    print(f"{'':44}{'least':>10}{'median':>10}")
    for title, hardware in (("8 equal", EQUAL), ("8 unequal", UNEQUAL)):
        for model in MODELS:
            told = f"{title} devices, 100 layers, {model.model_id}"
            _clock(told, partial(_alone, model, hardware))
        _clock(f"{title} devices, those three together", partial(_all, hardware))


def _clock(title: str, work: Callable[[], object]) -> None:
    times = []
    for _ in range(RUNS):
        began_s = perf_counter()
        work()
        times.append((perf_counter() - began_s) * 1e3)
    print(f"{title:44}{min(times):>7.1f} ms{median(times):>7.1f} ms")


def _alone(model: ServedModel, hardware: HardwareProfile) -> object:
    return plan_launch(model, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


def _all(hardware: HardwareProfile) -> object:
    return plan_together(MODELS, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


if __name__ == "__main__":
    main()
