"""The last table of `make bench-planner`: how long placement thinks, on made-up machines."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

from planners.graph.reservation import forget
from planners.hardware import HardwareProfile
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.sizes import MIB
from planners.together import plan_together
from tests.fakes.machines import CPU, CUDA, RULES, VULKAN, machine, model_info, nvidia, served
from tests.fakes.tiny_models import TinyModel, info_of

ENGINES = (CPU, VULKAN, CUDA)
RUNS = 15
EQUAL = machine(*(nvidia(i, 8) for i in range(8)), host_gib=64)
UNEQUAL = machine(*(nvidia(i, 6 + 0.7 * i) for i in range(8)), host_gib=64)


def _model(name: str, layer_mib: int, *, expert_mib: int = 0) -> ServedModel:
    info = model_info(n_layer=100, layer_bytes=layer_mib * MIB, expert_bytes=expert_mib * MIB)
    return replace(served(info), model_id=ModelId(name))


def _drawn(name: str, architecture: str, n_embd: int, **numbers: int) -> ServedModel:
    """A model whose graph is drawn; the larger part of a first look goes there."""
    told = {key.replace("head_", "attention.head_"): value for key, value in numbers.items()}
    tiny = TinyModel(name, architecture, n_embd, 100, told, is_tied=False, n_vocab=128256)
    return replace(served(info_of(tiny)), model_id=ModelId(name))


SUMS = (
    _model("fits", 400),
    _model("too large", 700),
    _model("experts", 700, expert_mib=600),
)
DRAWN = (
    _drawn("drawn", "llama", 4096, feed_forward_length=14336, head_count=32, head_count_kv=8),
    _drawn("drawn, too large", "llama", 6144, feed_forward_length=24576, head_count=48,
           head_count_kv=8),
    _drawn("drawn, experts", "qwen3moe", 2048, expert_feed_forward_length=768, expert_count=128,
           expert_used_count=8, feed_forward_length=6144, head_count=32, head_count_kv=4),
)  # fmt: skip


def main() -> None:
    """Print the table: least and median milliseconds, nothing remembered of the time before."""
    print(f"{'':48}{'least':>10}{'median':>10}")
    for title, hardware in (("8 equal", EQUAL), ("8 unequal", UNEQUAL)):
        for models in (SUMS, DRAWN):
            for model in models:
                told = f"{title} devices, 100 layers, {model.model_id}"
                _clock(told, partial(_alone, model, hardware))
            _clock(f"{title} devices, those three together", partial(_all, models, hardware))


def _clock(title: str, work: Callable[[], object]) -> None:
    times = []
    for _ in range(RUNS):
        forget()
        began_s = perf_counter()
        work()
        times.append((perf_counter() - began_s) * 1e3)
    print(f"{title:48}{min(times):>7.1f} ms{median(times):>7.1f} ms")


def _alone(model: ServedModel, hardware: HardwareProfile) -> object:
    return plan_launch(model, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


def _all(models: tuple[ServedModel, ...], hardware: HardwareProfile) -> object:
    return plan_together(models, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


if __name__ == "__main__":
    main()
