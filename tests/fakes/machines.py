"""Hand-made machines, engines, models and settings for tests; all synthetic."""

from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import Device, DeviceId, DeviceKind, HardwareProfile, Host
from planners.model import LayerInfo, LayerKind, ModelId, ModelInfo, ModelSettings, ServedModel
from planners.settings import ContextPolicy, FleetSettings, MemoryRule, PlacementRules
from planners.sizes import GIB, MIB

RULES = PlacementRules(
    devices=(),
    memory=MemoryRule(limit_bytes=None, reserve_bytes=0),
    device_reserve_bytes=0,
    context=None,
    parallel=None,
    type_k="f16",
    type_v="f16",
    backends=(),
    allows_cpu_fallback=True,
    rpc_servers=(),
)
FLEET = FleetSettings(
    max_loaded=None,
    max_waiting=20,
    load_s=20.0,
    load_limit_s=3600.0,
    drain_s=1.0,
    finish_s=10.0,
    wait_s=30.0,
    stop_s=2.0,
    restart_window_s=600.0,
    restart_limit=3,
    cooldown_s=60.0,
    hang_s=60.0,
    turn_s=15.0,
    context_policy=ContextPolicy.RATCHET,
    groups=(),
)
PLAIN = ModelSettings(
    context=None,
    parallel=None,
    pin=False,
    keep_alive_s=300.0,
    flags=(),
    mmproj_path=None,
    draft_path=None,
    lora_paths=(),
)
"""Settings of a model of which the operator says nothing."""

FLAGS = frozenset({
    "--model", "--alias", "--host", "--slot-save-path", "--sse-ping-interval", "--verbosity",
    "--no-ui", "--offline", "--jinja", "--ctx-size", "--parallel", "--no-kv-unified",
    "--batch-size", "--ubatch-size", "--threads", "--cache-ram", "--ctx-checkpoints",
    "--embedding", "--pooling", "--rerank", "--fit", "--device", "--n-gpu-layers",
    "--tensor-split", "--n-cpu-moe",
    "--flash-attn", "--cache-type-k", "--cache-type-v", "--swa-full", "--mmproj",
    "--no-mmproj-offload", "--spec-draft-model", "--spec-draft-device", "--spec-type", "--lora",
})  # fmt: skip


def engine(backend: str, *, flags: frozenset[str] = FLAGS) -> Engine:
    """An engine that was found and tried."""
    return Engine(
        engine_id=f"{backend}-engine",
        backend=backend,
        path=f"/engines/{backend}/llama-server",
        source="built",
        env=(),
        flags=flags,
        devices=(),
        version="b10434",
    )


CPU, CUDA, VULKAN = engine("cpu"), engine("cuda"), engine("vulkan")


def host(available_gib: float = 24.0, *, n_physical_cores: int = 8) -> Host:
    """A host with nothing reserved."""
    return Host(
        total_bytes=int(max(available_gib, 1) * GIB),
        available_bytes=int(available_gib * GIB),
        cgroup_limit_bytes=None,
        n_cores=2 * n_physical_cores,
        n_physical_cores=n_physical_cores,
        cpu_name="a processor",
    )


def nvidia(index: int, gib: float, *, free_gib: float | None = None) -> Device:
    """A discrete card that CUDA and Vulkan both see."""
    free = gib if free_gib is None else free_gib
    return Device(
        device_id=DeviceId(f"pci:0000:0{index + 1}:00.0"),
        kind=DeviceKind.DISCRETE,
        name=f"card {index} of {gib:g} GiB",
        engine_names=(("cuda", f"CUDA{index}"), ("vulkan", f"Vulkan{index}")),
        total_bytes=int(gib * GIB),
        free_bytes=int(free * GIB),
    )


INTEGRATED = Device(
    device_id=DeviceId("pci:0000:00:02.0"),
    kind=DeviceKind.INTEGRATED,
    name="an integrated GPU",
    engine_names=(("vulkan", "Vulkan7"),),
    total_bytes=8 * GIB,
    free_bytes=8 * GIB,
)
LLVMPIPE = Device(
    device_id=DeviceId("vulkan:Vulkan0"),
    kind=DeviceKind.SOFTWARE,
    name="llvmpipe (LLVM 15.0.6, 256 bits)",
    engine_names=(("vulkan", "Vulkan0"),),
    total_bytes=2 * GIB,
    free_bytes=2 * GIB,
    use=False,
)


def machine(*devices: Device, host_gib: float = 24.0) -> HardwareProfile:
    """A machine of that many GiB of free host memory, with these devices."""
    return HardwareProfile(host=host(host_gib), devices=devices)


def model_info(
    *,
    n_layer: int = 32,
    layer_bytes: int = 112 * MIB,
    expert_bytes: int = 0,
    kinds: tuple[LayerKind, ...] = (LayerKind.FULL,),
    n_ctx_train: int = 131072,
    pooling: str | None = None,
    state_width: int = 0,
) -> ModelInfo:
    """A model with llama-3.1-8B's shape (32 heads, 8 of KV, n_embd 4096), layers of one size."""

    def layer(kind: LayerKind) -> LayerInfo:
        kv_width = 1024 if kind in (LayerKind.FULL, LayerKind.SWA) else 0
        return LayerInfo(
            weight_bytes=layer_bytes,
            expert_bytes=expert_bytes,
            kind=kind,
            n_head=32,
            n_head_kv=8,
            k_width=kv_width,
            v_width=kv_width,
            n_ff=14336,
            q_width=4096,
            state_width=state_width if kind is LayerKind.RECURRENT else 0,
        )

    layers = tuple(layer(kinds[i % len(kinds)]) for i in range(n_layer))
    input_bytes, output_bytes = 282 * MIB, 411 * MIB
    file_bytes = input_bytes + output_bytes + n_layer * layer_bytes
    return ModelInfo(
        digest="ab" * 32,
        architecture="llama",
        name="a model",
        quantization="Q4_K_M",
        n_params=8_030_261_248,
        n_ctx_train=n_ctx_train,
        n_embd=4096,
        n_vocab=128256,
        n_expert=32 if expert_bytes else 0,
        n_expert_used=4 if expert_bytes else 0,
        sliding_window=1024 if LayerKind.SWA in kinds else 0,
        layers=layers,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        is_causal=True,
        pooling=pooling,
        chat_template=None,
        has_vision=False,
        metadata=(),
        file_bytes=file_bytes,
        largest_tensor_bytes=layer_bytes // 4,
    )


LLAMA_8B = model_info()


def served(
    info: ModelInfo = LLAMA_8B,
    *,
    context: int | None = None,
    parallel: int | None = None,
    mmproj_path: str | None = None,
    draft_path: str | None = None,
    lora_paths: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    companion_bytes: int = 0,
) -> ServedModel:
    """That model as the catalogue offers it."""
    return ServedModel(
        model_id=ModelId("a-model"),
        aliases=(),
        path="/models/a-model.gguf",
        info=info,
        settings=replace(
            PLAIN,
            context=context,
            parallel=parallel,
            flags=flags,
            mmproj_path=mmproj_path,
            draft_path=draft_path,
            lora_paths=lora_paths,
        ),
        size_bytes=info.file_bytes + companion_bytes,
        modified_at=0.0,
        file_key="1",
    )
