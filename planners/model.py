"""What a model file is and how it is to be served: frozen values.

Made by planners.gguf (the file's facts) and by the catalogue (the operator's settings).
"""

from enum import Enum
from typing import NewType

from msgspec import Struct

from planners.recipe import PLAIN, Recipe
from planners.templates.given import GivenTemplate

ModelId = NewType("ModelId", str)
"""The one name of a model, e.g. "SmolLM2-135M-Instruct.Q4_1"; aliases resolve to it."""


def folded(name: str) -> str:
    """A name or alias as it is looked up: without case and ":latest"."""
    return name.lower().removesuffix(":latest")


MetadataValue = str | int | float | bool | None
"""A GGUF value as kept: scalars whole, long arrays as None."""


class LayerKind(Enum):
    """What a layer keeps between tokens."""

    FULL = "full"  # KV of every token
    SWA = "swa"  # KV of a sliding window
    RECURRENT = "recurrent"  # a state of fixed size
    NONE = "none"  # nothing (an MLP-only layer, an encoder's layer)

    __hash__ = object.__hash__  # enum's own is Python code, and layers are hashed by the hundred


class WeightInfo(Struct, frozen=True):
    """One tensor of the file, named within its block: "attn_q.weight"."""

    name: str
    shape: tuple[int, ...]
    n_bytes: int
    type_name: str = ""
    """As in planners.ggml.types: "q8_0"; "" where it is not known."""


DIFFUSERS = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Architectures that write a whole batch at once and keep no token (llama-arch.cpp)."""


class LayerInfo(Struct, frozen=True):
    """One repeating block."""

    weight_bytes: int
    expert_bytes: int
    """The part of weight_bytes that routed experts take."""
    kind: LayerKind
    n_head: int
    n_head_kv: int
    k_width: int
    """Elements of K per token, over all its KV heads."""
    v_width: int
    n_ff: int
    """Width of the feed-forward network, of one expert where there are some; 0 for none."""
    q_width: int = 0
    """Elements of Q per token, over all heads."""
    index_width: int = 0
    """Elements per token that an indexer keeps beside K, of K's type, to choose what is read."""
    index_v_width: int = 0
    """Likewise beside V, of V's type; most indexers keep none."""
    state_width: int = 0
    """Elements (f32) of recurrent state per sequence; beside KV in layers that have both."""
    has_gate: bool = True
    """Whether the feed-forward network is gated."""
    has_qk_norm: bool = False
    has_rope: bool = True
    """Whether positions turn its Q and K, as far as layers of one model differ in it."""
    weights: tuple[WeightInfo, ...] = ()
    """Its tensors; () where only sums are known, and then compute buffers are estimates."""

    def weight(self, name: str) -> WeightInfo | None:
        """The tensor of that name within the block."""
        for weight in self.weights:
            if weight.name == name:
                return weight
        return None


class RecurrentShape(Struct, frozen=True):
    """Dimensions of the recurrent layers, which set their compute buffers."""

    d_inner: int
    d_state: int
    n_group: int
    n_head: int
    """`ssm.time_step_rank`: heads of Mamba-2 and of gated delta nets."""
    n_taps: int = 4
    """`ssm.conv_kernel`."""


class ModelInfo(Struct, frozen=True):
    """What a GGUF file says of itself. Bytes are tensor bytes, without padding."""

    digest: str
    """SHA-256 of the header, hex: equal headers plan alike."""
    architecture: str
    name: str
    quantization: str
    """As Ollama prints it: "Q4_K_M", "F16", "unknown"."""
    n_params: int
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    n_expert: int
    n_expert_used: int
    sliding_window: int
    """0 where no layer has one."""
    layers: tuple[LayerInfo, ...]
    input_bytes: int
    """Tensors that always stay on the host: token_embd and its kin."""
    output_bytes: int
    """Tensors that follow the output layer; token_embd again where it is tied."""
    is_causal: bool
    pooling: str | None
    """"mean", "cls", "last", "rank"…; None for a text model."""
    chat_template: str | None
    has_vision: bool
    metadata: tuple[tuple[str, MetadataValue], ...]
    file_bytes: int
    tied_bytes: int = 0
    """The part of output_bytes that is token_embd again; not held twice on the host."""
    largest_tensor_bytes: int = 0
    """Of those inside layers: what a device borrows to compute for the host."""
    ends: tuple[WeightInfo, ...] = ()
    """Tensors outside of blocks: token_embd, output and their kin."""
    recurrent: RecurrentShape | None = None
    """None where no layer is recurrent, or only by short convolutions."""
    warnings: tuple[str, ...] = ()
    """Missing or odd keys that were given a default, each a sentence; shown with every plan."""

    @property
    def n_layer(self) -> int:
        """Repeating blocks; `-ngl` counts one more, the output layer."""
        return len(self.layers)

    @property
    def keeps_nothing(self) -> bool:
        """True where a batch is read at once, and attends to itself.

        A decoder whose file says that it is not causal keeps its KV cache.
        """
        return bool(self.layers) and all(layer.kind is LayerKind.NONE for layer in self.layers)

    @property
    def is_encoder(self) -> bool:
        """True where such a batch has embeddings for its outcome, not the text of a diffuser."""
        return self.keeps_nothing and self.architecture not in DIFFUSERS

    @property
    def is_embedding(self) -> bool:
        """True when the child must be launched with `--embedding`."""
        return not self.is_causal or self.pooling not in (None, "none")

    @property
    def is_reranker(self) -> bool:
        """True when it scores documents by a query: the child must be launched with `--rerank`."""
        return self.pooling == "rank"

    @property
    def is_projector(self) -> bool:
        """True for an mmproj file, which serves beside a text model and never alone."""
        return self.architecture == "clip"

    @property
    def is_adapter(self) -> bool:
        """True for a LoRA adapter, which is no model of its own."""
        return dict(self.metadata).get("general.type") == "adapter"


class ModelSettings(Struct, frozen=True):
    """How the operator wants one model served. Defaults are config.py's business."""

    context: int | None
    """Tokens one request may use; None lets placement choose."""
    parallel: int | None
    """Requests served at once; None lets placement choose."""
    pin: bool
    keep_alive_s: float
    """From the end of the last request to unloading; inf is forever."""
    flags: tuple[str, ...]
    """Appended to the child's command line as written."""
    mmproj_path: str | None
    draft_path: str | None
    lora_paths: tuple[str, ...]


class ServedModel(Struct, frozen=True):
    """A model the daemon offers: the file, its facts and its settings."""

    model_id: ModelId
    aliases: tuple[str, ...]
    path: str
    info: ModelInfo
    settings: ModelSettings
    size_bytes: int
    """Of all its files, projector included."""
    modified_at: float
    """UTC seconds."""
    file_key: str
    """Changes when the file does (size, mtime, inode)."""
    draft: ModelInfo | None = None
    """The draft model's facts, where the settings name one that can be read."""
    projector: ModelInfo | None = None
    """The projector's facts, likewise."""
    recipe: Recipe = PLAIN
    """What its store says of how it is meant to be asked."""
    store: str = ""
    """The folder of the store that holds it; "" for a file of its own."""
    manifest_digest: str = ""
    """Of its manifest there, hex."""
    template: GivenTemplate | None = None
    """What its store gives it, where its file has no chat template; None where nothing is given."""
    is_elsewhere: bool = False
    """Found by itself in another program's folder: one of the daemon's own goes before it."""

    @property
    def shown_digest(self) -> str:
        """What Ollama's clients tell models apart by, hex."""
        return self.manifest_digest or self.info.digest


class BrokenKind(Enum):
    """What kind of thing is broken, which tells how to mend it."""

    FILE = "file"
    INCOMPLETE = "incomplete"  # a part is missing, or the end: not downloaded whole
    UNREADABLE = "unreadable"  # it is there, and not ours to read
    ABSENT = "absent"  # a rule of the settings has a path where we see no file
    FOLDER = "folder"  # cannot be searched, or not to its end
    RULE = "rule"  # of the settings, for a file that is not there


class BrokenFile(Struct, frozen=True):
    """A file that looks like a model and is none."""

    path: str
    reason: str
    names: tuple[str, ...] = ()
    """What it would have been offered under, aliases included; none where no name is its own."""
    kind: BrokenKind = BrokenKind.FILE
