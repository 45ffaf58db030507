"""llama-server's command line as the shape of a launch: the inverse of planners.argv, for rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planners.graph.fallback import SOFTWARE_BINDING_BYTES, is_remote
from planners.graph.kv_cache import CELL_STEP, LaunchShape, padded
from planners.hardware import DeviceId
from planners.layout.asked import NO_FLASH_ATTENTION
from planners.layout.partition import engine_blocks
from planners.model import ModelInfo

UNIFIED_SLOTS = 4  # what `-np` unset comes to, and then the slots share one cache
_ALIASES = {
    "--ctx-size": "-c", "--gpu-layers": "-ngl", "--n-gpu-layers": "-ngl", "--parallel": "-np",
    "--flash-attn": "-fa", "--cache-type-k": "-ctk", "--cache-type-v": "-ctv",
    "--ubatch-size": "-ub", "--batch-size": "-b", "--tensor-split": "-ts", "-dev": "--device",
    "--no-kv-offload": "-nkvo", "--cpu-moe": "-cmoe", "--n-cpu-moe": "-ncmoe",
    "--override-tensor": "-ot", "--embeddings": "--embedding", "--model-draft": "-md",
    "--threads": "-t", "--threads-batch": "-tb", "--verbosity": "-lv", "--log-verbosity": "-lv",
    "--verbose": "-v", "--ctx-checkpoints": "-ctxcp", "--split-mode": "-sm", "-fit": "--fit",
    "-kvu": "--kv-unified", "-no-kvu": "--no-kv-unified", "--spec-draft-model": "-md",
}  # fmt: skip
_VALUED = frozenset({
    "-c", "-ngl", "-np", "-fa", "-ctk", "-ctv", "-ub", "-b", "-ts", "--device", "--rpc", "-ncmoe",
    "-ot", "-md", "-ngld", "--mmproj", "--load-mode", "-t", "--fit", "--fit-target", "-lv", "-tb",
    "--host", "--port", "--seed", "--cache-ram", "-ctxcp", "-sm",
})  # fmt: skip
_SWITCHES = frozenset({
    "-nkvo", "-cmoe", "--embedding", "--kv-unified", "--no-kv-unified", "--swa-full", "--no-repack",
    "--no-mmap", "--mmap", "--no-warmup", "-v", "--no-op-offload", "--op-offload", "--mlock",
    "--jinja", "--metrics", "--slots", "--no-slots", "--no-webui",
})  # fmt: skip
_ALL = 1 << 12


class NotModelled(Exception):
    """A row that asks for something which predictions do not know, and what."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options by their short names."""

    values: Mapping[str, tuple[str, ...]]

    def last(self, name: str) -> str | None:
        """The value that counts, None where the option is not given."""
        return self.values[name][-1] if name in self.values else None

    def number(self, name: str, default: int) -> int:
        """A whole number. Raises NotModelled on any other text."""
        text = self.last(name)
        try:
            return default if text is None else int(text)
        except ValueError as exc:
            raise NotModelled(f"{name} {text}") from exc


def asked(flags: Sequence[str]) -> Asked:
    """The options of a command line. Raises NotModelled on one that is not known."""
    found: dict[str, tuple[str, ...]] = {}
    rest = iter(flags)
    for flag in rest:
        name = _ALIASES.get(flag, flag)
        if name in _VALUED:
            value = next(rest, None)
            if value is None:
                raise NotModelled(f"{flag} without a value")
            found[name] = (*found.get(name, ()), value)
        elif name in _SWITCHES:
            found[name] = ("",)
        else:
            raise NotModelled(f"option {flag}")
    return Asked(found)


def launch_shape(options: Asked, model: ModelInfo, *, devices: Sequence[DeviceId]) -> LaunchShape:
    """The effective shape of a launch (llama-context.cpp and tools/server, b10434)."""
    is_set = options.number("-np", -1) > 0
    n_parallel = options.number("-np", UNIFIED_SLOTS) if is_set else UNIFIED_SLOTS
    unified = "--kv-unified" in options.values or not is_set
    unified = unified and "--no-kv-unified" not in options.values
    context = options.number("-c", 0) or model.n_ctx_train
    n_ctx = padded(context, CELL_STEP)
    if not unified:
        n_ctx = padded(-(-n_ctx // n_parallel), CELL_STEP) * n_parallel
    embedding = "--embedding" in options.values
    n_batch = options.number("-b", 2048)
    # The batch is cut to the context as it was asked for, not as it is padded.
    is_cut = model.is_causal and not model.keeps_nothing
    n_batch = min(context, n_batch) if is_cut else n_batch
    n_ubatch = min(n_batch, options.number("-ub", 512))
    return LaunchShape(
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        n_batch=n_ubatch if embedding else n_batch,
        n_ubatch=n_ubatch,
        type_k=options.last("-ctk") or "f16",
        type_v=options.last("-ctv") or "f16",
        flash_attn=options.last("-fa") not in ("off", "0", "false")
        and model.architecture not in NO_FLASH_ATTENTION,
        embedding=embedding,
        kv_unified=unified,
        swa_full="--swa-full" in options.values,
        n_cpu_moe=_ALL if "-cmoe" in options.values else options.number("-ncmoe", 0),
        kv_on_host="-nkvo" in options.values,
        op_offload="--no-op-offload" not in options.values,
        on_host=tuple(_patterns(options)),
        backend="vulkan",
        binding_limits=tuple((d, SOFTWARE_BINDING_BYTES) for d in devices if not is_remote(d)),
        split=_split(options, model, devices),
    )


def _patterns(options: Asked) -> Iterator[str]:
    for rule in ",".join(options.values.get("-ot", ())).split(","):
        pattern, _, target = rule.partition("=")
        if pattern and target != "CPU":
            raise NotModelled(f"-ot {rule}")
        if pattern:
            yield pattern


def _split(
    options: Asked, model: ModelInfo, devices: Sequence[DeviceId]
) -> tuple[tuple[DeviceId, int], ...]:
    """Layers per device, by `-ngl` and `-ts`; () where none leaves the host."""
    told = options.last("-ngl") or "all"
    n_layer = model.n_layer
    layers = _ALL if told in ("all", "auto", "-1") else options.number("-ngl", _ALL)
    n_active = min(layers, n_layer + 1)
    if not devices:
        return ()
    if (mode := options.last("-sm")) not in (None, "layer") and len(devices) > 1:
        raise NotModelled(f"-sm {mode} over several devices")
    if not n_active:  # a device without layers still computes large batches for the host
        return tuple((device, 0) for device in devices)
    shares = options.last("-ts")
    if shares is None and len(devices) > 1:
        raise NotModelled("several devices without -ts: the split follows free memory")
    weights = (
        [1.0] if shares is None else [float(share) for share in shares.replace("/", ",").split(",")]
    )
    padded_weights = (weights + [0.0] * len(devices))[: len(devices)]
    counts = engine_blocks(padded_weights, n_gpu_layers=n_active)
    return tuple((device, n) for device, n in zip(devices, counts, strict=True))
