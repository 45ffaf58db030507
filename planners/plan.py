"""The answer to "how do we launch this model here?": a LaunchPlan, or what is missing for one."""

import hashlib
from collections.abc import Mapping
from typing import NewType

from msgspec import Struct

from planners.hardware import DeviceId
from planners.layout.dry_runs import DryRunKey
from planners.model import ModelId
from planners.reasons import Reason
from planners.sizes import format_size

InstanceId = NewType("InstanceId", str)
"""One instance of a model, for as long as the daemon keeps it: "smollm2-3"."""


class DeviceBytes(Struct, frozen=True):
    """Bytes that a plan expects, or a child reported, on one device (or on HOST)."""

    device_id: DeviceId
    weights_bytes: int
    kv_bytes: int
    """KV cache and recurrent state."""
    compute_bytes: int
    """Compute and output buffers."""
    overhead_bytes: int = 0
    """What no buffer line shows: the driver's context, the process itself, its prompt cache."""
    margin_bytes: int = 0
    """By how much the compute estimate may be too low; placed for, but not expected."""

    @property
    def kept_bytes(self) -> int:
        """The part that no estimate decides: all but the buffers."""
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    @property
    def buffer_bytes(self) -> int:
        """What the engine's log shows line by line: the part that can be measured."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    @property
    def total_bytes(self) -> int:
        """What is expected, all in all."""
        return self.buffer_bytes + self.overhead_bytes

    @property
    def upper_bytes(self) -> int:
        """What placement makes room for."""
        return self.total_bytes + self.margin_bytes


class LaunchPlan(Struct, frozen=True):
    """Everything a llama-server child is launched with, and why.

    Numbers are as the engine will use them.
    """

    model_id: ModelId
    model_path: str
    model_digest: str
    file_key: str
    backend: str
    engine_id: str
    devices: tuple[tuple[DeviceId, str, int], ...]
    """(device, the engine's name for it, layers on it with the output layer), in `--device` order.

    () means CPU only.
    """
    n_ctx: int
    """Total over all slots: context of one request × n_parallel."""
    n_parallel: int
    n_batch: int
    n_ubatch: int
    n_gpu_layers: int
    n_threads: int
    type_k: str
    type_v: str
    flash_attn: bool
    cache_ram_mib: int
    ctx_checkpoints: int
    embedding: bool
    mmproj_path: str | None
    draft_path: str | None
    lora_paths: tuple[str, ...]
    extra_flags: tuple[str, ...]
    predicted: tuple[DeviceBytes, ...]
    reasons: tuple[Reason, ...]
    """Each decision, in the order taken."""
    chat_template: str = ""
    """Jinja, for a model whose file has none; "" for the file's own."""
    n_cpu_moe: int = 0
    """The first so many layers keep their routed experts in the host's memory."""
    swa_full: bool = False
    """Sliding-window layers keep every token: only then can their slots be saved and moved."""
    repack: bool = True
    """Whether the engine may lay out the host's weights anew, as its processor likes them best."""
    rpc_servers: tuple[str, ...] = ()
    """HOST:PORT of the ggml-rpc-servers whose devices it uses, in `--rpc` order."""
    predicted_prompt_tokens_per_s: float | None = None
    """Of one long prompt alone; None where nobody predicted."""
    predicted_decode_tokens_per_s: float | None = None
    """Over all slots together, each of them busy."""
    pooling: str | None = None
    """How an embedding is made of its tokens: "mean", "last", "rank"…; None is the file's own."""
    doubt: DryRunKey | None = None
    """It fits by what is expected, not by its upper bounds: the dry run of this must say so before
    it is launched. None where there is no doubt."""

    @property
    def context(self) -> int:
        """Tokens one request may use."""
        return self.n_ctx // self.n_parallel

    @property
    def tensor_split(self) -> tuple[int, ...]:
        """Layers per device; whole counts are exact in llama.cpp's float32 split rule."""
        return tuple(layers for _, _, layers in self.devices)

    @property
    def digest(self) -> str:
        """12 hex digits that change exactly when the child would have to be launched anew."""
        told = [
            (name, getattr(self, name))
            for name in self.__struct_fields__
            if not name.startswith("predicted") and name not in ("reasons", "doubt")
        ]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:12]

    def bytes_on(self, device_id: DeviceId) -> int:
        """Predicted bytes on one device; 0 where the plan does not touch it."""
        return sum(part.total_bytes for part in self.predicted if part.device_id == device_id)


class Shortfall(Struct, frozen=True):
    """A model does not fit: what eviction reads, and what the caller is told."""

    model_id: ModelId
    missing_bytes: Mapping[DeviceId, int]
    """By how much the smallest acceptable plan exceeds each device."""
    reason: str

    def __str__(self) -> str:
        where = ", ".join(f"{format_size(n)} on {d}" for d, n in self.missing_bytes.items())
        return f"{self.model_id} does not fit: {self.reason}" + (
            f" ({where} missing)" if where else ""
        )
