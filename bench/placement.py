"""The last table of `make bench-planner`: how long placement thinks, on made-up machines.

By the CPU it takes, which is all that planning does, so that a busy machine tells the same. Its
last part is made to take long: as many layers as a file may have, no two alike, and far more
devices than one launch can use.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle
from statistics import median
from time import process_time
from types import MappingProxyType

from msgspec.structs import replace

from planners.ggml.layers import MAX_LAYERS
from planners.graph.reservation import forget
from planners.hardware import HardwareProfile
from planners.layout.outlook import Surroundings, outlook
from planners.layout.together import plan_together
from planners.model import LayerKind, ModelId, ModelInfo, ServedModel
from planners.placement import plan_launch
from planners.sizes import GIB, MIB
from tests.fakes.machines import (
    CPU,
    CUDA,
    INTEGRATED,
    RULES,
    VULKAN,
    machine,
    model_info,
    nvidia,
    served,
)
from tests.fakes.tiny_models import Number, TinyModel, info_of

ENGINES = (CPU, VULKAN, CUDA)
RUNS = 15
HARD_RUNS = 5
EQUAL = machine(*(nvidia(i, 8) for i in range(8)), host_gib=64)
UNEQUAL = machine(
    *(replace(nvidia(i, 6 + 0.7 * i), bandwidth_bytes_per_s=(2 + i) * 100e9) for i in range(8)),
    host_gib=64,
)


def _model(name: str, layer_mib: int, *, expert_mib: int = 0) -> ServedModel:
    info = model_info(n_layer=100, layer_bytes=layer_mib * MIB, expert_bytes=expert_mib * MIB)
    return replace(served(info), model_id=ModelId(name))


def _drawn(
    name: str,
    architecture: str,
    n_embd: int,
    n_layer: int = 100,
    *,
    attention: Mapping[str, Number] = MappingProxyType({}),
    **numbers: int,
) -> ServedModel:
    """A model whose graph is drawn; the larger part of a first look goes there."""
    names = {"head_": "attention.head_", "ssm_": "ssm.", "sliding_": "attention.sliding_"}
    told: dict[str, Number] = {f"attention.{key}": value for key, value in attention.items()}
    for key, value in numbers.items():
        start = next((start for start in names if key.startswith(start)), "")
        told[names.get(start, "") + key.removeprefix(start)] = value
    tiny = TinyModel(name, architecture, n_embd, n_layer, told, is_tied=False, n_vocab=128256)
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

TURNS = (
    _drawn("62 layers, drawn, windows", "gemma3", 5376, 62, feed_forward_length=21504,
           head_count=32, head_count_kv=16, sliding_window=1024),
    _drawn("48 layers, drawn, states and experts, too large", "qwen3next", 2048, 48,
           expert_feed_forward_length=512, expert_count=512, expert_used_count=10,
           expert_shared_feed_forward_length=512, feed_forward_length=5120, head_count=16,
           head_count_kv=2, ssm_inner_size=4096, ssm_state_size=128, ssm_group_count=16,
           ssm_time_step_rank=32, ssm_conv_kernel=4),
    _drawn("48 layers, drawn, states and fewer experts", "qwen3next", 2048, 48,
           expert_feed_forward_length=512, expert_count=192, expert_used_count=10,
           expert_shared_feed_forward_length=512, feed_forward_length=5120, head_count=16,
           head_count_kv=2, ssm_inner_size=4096, ssm_state_size=128, ssm_group_count=16,
           ssm_time_step_rank=32, ssm_conv_kernel=4),
    _drawn("100 layers, drawn, windows", "gemma3", 5376, 100, feed_forward_length=21504,
           head_count=32, head_count_kv=16, sliding_window=1024),
    _drawn("100 layers, drawn, every other a window", "gemma2", 3584, 100,
           feed_forward_length=14336, head_count=16, head_count_kv=8, sliding_window=4096),
    _drawn("100 layers, drawn, windows and experts", "gpt-oss", 2880, 100,
           expert_feed_forward_length=2880, expert_count=16, expert_used_count=4,
           feed_forward_length=2880, head_count=64, head_count_kv=8, sliding_window=128,
           attention={"key_length": 64, "value_length": 64}),
    _drawn("100 layers, drawn, latent", "deepseek2", 2048, 100, head_count=16, head_count_kv=1,
           attention={"key_length": 576, "value_length": 512, "key_length_mla": 192,
                      "value_length_mla": 128, "kv_lora_rank": 512},
           expert_feed_forward_length=1408, expert_count=64, expert_used_count=6,
           expert_shared_count=2, leading_dense_block_count=1, feed_forward_length=10944),
    _drawn("100 layers, drawn, states", "mamba2", 2560, 100, head_count=0, feed_forward_length=0,
           ssm_inner_size=5120, ssm_state_size=128, ssm_group_count=1, ssm_time_step_rank=80,
           ssm_conv_kernel=4),
    _drawn("40 layers, drawn, states and heads", "granitehybrid", 2048, 40,
           attention={"head_count_kv": [8 if i % 10 == 5 else 0 for i in range(40)]},
           head_count=32, feed_forward_length=8192, ssm_inner_size=4096, ssm_state_size=128,
           ssm_group_count=1, ssm_time_step_rank=64, ssm_conv_kernel=4),
)  # fmt: skip
"""More kinds of layers, and such as take turns."""


def _uneven(info: ModelInfo) -> ModelInfo:
    """The deepest model there may be with layers of that kind, each a little unlike the others."""
    layers = tuple(
        replace(
            layer,
            weight_bytes=layer.weight_bytes + 4096 * i * max(len(layer.weights), 1),
            n_ff=layer.n_ff + i,
            weights=tuple(replace(w, n_bytes=w.n_bytes + 4096 * i) for w in layer.weights),
        )
        for i, layer in zip(range(MAX_LAYERS), cycle(info.layers))
    )
    return replace(info, layers=layers, digest=f"uneven {info.digest}")


def _hard(name: str, layer_mib: int, *, expert_mib: int = 0) -> ServedModel:
    layers = (LayerKind.FULL, LayerKind.SWA, LayerKind.RECURRENT)
    info = model_info(
        n_layer=6, layer_bytes=layer_mib * MIB, expert_bytes=expert_mib * MIB, kinds=layers,
        state_width=100_000,
    )  # fmt: skip
    return replace(served(_uneven(info), parallel=4), model_id=ModelId(name))


def _beside(model: ServedModel, draft: ServedModel) -> ServedModel:
    """A model with a projector, and a draft model that is as deep."""
    settings = replace(model.settings, mmproj_path="/m.gguf", draft_path="/d.gguf")
    size_bytes = model.size_bytes + 2 * GIB
    return replace(model, settings=settings, draft=draft.info, size_bytes=size_bytes)


MANY = machine(*(nvidia(i, 4 + i / 16) for i in range(128)), host_gib=64)
FEW = machine(*(nvidia(i, 14 + i) for i in range(3)), host_gib=8)
POOLED = machine(replace(INTEGRATED, total_bytes=60 * GIB, free_bytes=60 * GIB), host_gib=20)
SHORT = machine(*(nvidia(i, 8 + i / 4) for i in range(15)), host_gib=0.2)
HARD = (
    _hard("uneven", 40),
    _hard("uneven, experts", 350, expert_mib=300),
    _beside(_hard("uneven, companions", 100), _hard("draft", 2)),
    *(replace(m, info=_uneven(m.info), model_id=ModelId(f"{m.model_id}, uneven")) for m in DRAWN),
)


def usual() -> Iterator[tuple[str, Callable[[], object]]]:
    """The rows of eight devices, each as what it is called and what it thinks through."""
    for title, hardware in (("8 equal", EQUAL), ("8 unequal", UNEQUAL)):
        for models in (SUMS, DRAWN):
            for model in models:
                told = f"{title} devices, 100 layers, {model.model_id}"
                yield told, partial(_alone, model, hardware)
            yield f"{title} devices, those three together", partial(_all, models, hardware)
        for model in TURNS:
            yield f"{title} devices, {model.model_id}", partial(_alone, model, hardware)


def main() -> None:
    """Print the table: least and median milliseconds, nothing remembered of the time before."""
    print(f"{'':60}{'least':>10}{'median':>10}")
    for title, work in usual():
        _clock(title, work)
    machines = (("128 devices", MANY), ("3 devices", FEW), ("one pool", POOLED), ("no host", SHORT))
    for title, hardware in machines:
        for model in HARD:
            told = f"{title}, {MAX_LAYERS} layers, {model.model_id}"
            _clock(told, partial(_alone, model, hardware), runs=HARD_RUNS)
            _clock(f"{told}: outlook", partial(_looked, model, hardware), runs=HARD_RUNS)


def _clock(title: str, work: Callable[[], object], *, runs: int = RUNS) -> None:
    times = []
    for _ in range(runs):
        forget()
        began_s = process_time()
        work()
        times.append((process_time() - began_s) * 1e3)
    print(f"{title:60}{min(times):>7.1f} ms{median(times):>7.1f} ms")


def _alone(model: ServedModel, hardware: HardwareProfile) -> object:
    return plan_launch(model, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


def _looked(model: ServedModel, hardware: HardwareProfile) -> object:
    return outlook(model, hardware, Surroundings(ENGINES, RULES, {}, {}))


def _all(models: tuple[ServedModel, ...], hardware: HardwareProfile) -> object:
    return plan_together(models, hardware=hardware, engines=ENGINES, rules=RULES, promised={})


if __name__ == "__main__":
    main()
