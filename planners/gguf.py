"""GGUF headers to ModelInfo: the facts that plans are made of. Sans-I/O: bytes in, values out.

The container is read by planners.ggml.header, what layers keep is known to planners.ggml.layers.
"""

import hashlib
import re
from collections.abc import Sequence

from planners.ggml.header import (
    GgufArray,
    GgufError,
    GgufHeader,
    GgufKind,
    NeedMore,
    Tensor,
    read_header,
)
from planners.ggml.layers import (
    ENCODERS,
    MAX_LAYERS,
    Facts,
    layers,
    recurrent_shape,
    sliding_window,
)
from planners.ggml.types import FILE_TYPES
from planners.model import LayerInfo, MetadataValue, ModelInfo, WeightInfo

__all__ = ["GgufError", "GgufKind", "NeedMore", "model_info", "parse_model", "read_header"]

_GUESSED = 1024  # llama.h LLAMA_FTYPE_GUESSED: a flag on top of the file type
_POOLING = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,4})\.")
_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_NOT_LOADED = ("v.", "mm.", "a.")  # a vision or audio tower inside a text model's file
_READ_TWICE = ("bitnet",)  # whose output is read from token_embd where that lies
_FIRST = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.")
_SHORT_CONVOLUTIONS = ("lfm2", "lfm2moe")  # their token_embd_norm is the output's


def parse_model(head: bytes | memoryview, *, file_bytes: int) -> ModelInfo:
    """What a file of `file_bytes` bytes that starts with `head` is. Raises GgufError, NeedMore.

    A split model's first file speaks for itself alone here; `model_info` sums all of them.
    """
    return model_info((read_header(head, file_bytes=file_bytes),))


def model_info(parts: Sequence[GgufHeader]) -> ModelInfo:
    """What the model is whose files have these headers, first part first. Raises GgufError."""
    first = parts[0]
    architecture = first.pairs.get("general.architecture")
    facts = Facts(first, architecture if isinstance(architecture, str) else "")
    _check_split(facts, n_parts=len(parts))
    if not facts.architecture:
        raise GgufError(GgufKind.MALFORMED, "malformed: general.architecture is missing")
    tensors = [tensor for part in parts for tensor in part.tensors]
    if not tensors:
        raise GgufError(GgufKind.MALFORMED, "no tensors: a vocabulary or metadata alone")
    return _info(facts, parts, tensors)


def _check_split(facts: Facts, *, n_parts: int) -> None:
    number, count = facts.scalar("split.no"), facts.scalar("split.count")
    if not isinstance(count, int) or count < 2:
        return
    if isinstance(number, int) and number > 0:
        raise GgufError(
            GgufKind.SPLIT_PART,
            f"part {number + 1} of {count} of a split model; its first part stands for it",
        )
    if count != n_parts:
        facts.warnings.append(f"{n_parts} of {count} parts were read: the weights are too low")


def _info(facts: Facts, parts: Sequence[GgufHeader], tensors: list[Tensor]) -> ModelInfo:
    arch, by_name = facts.architecture, {tensor.name: tensor for tensor in tensors}
    embedding = by_name.get("token_embd.weight")
    blocks, others = _blocks(facts, tensors)
    is_projector = arch == "clip"
    n_embd = facts.integer("embedding_length") or 0
    if not n_embd and not is_projector:
        n_embd = facts.expected("embedding_length", _dimension(embedding, 0))
    input_bytes, output_bytes = _ends(arch, others)
    is_causal = facts.scalar(f"{arch}.attention.causal") is not False and arch not in ENCODERS
    tied = embedding is not None and _is_tied(arch, by_name)
    tied_bytes = embedding.n_bytes if embedding is not None and tied else 0
    n_ctx_train = 0 if is_projector else facts.expected("context_length", 2048)
    found = layers(facts, blocks, n_embd=n_embd)
    n_vocab = _n_vocab(facts, embedding)
    return ModelInfo(
        digest=_digest(parts),
        architecture=arch,
        name=_text(facts, "general.name") or "",
        quantization=_quantization(facts),
        n_params=sum(tensor.n_elements for tensor in tensors),
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_expert=facts.integer("expert_count") or 0,
        n_expert_used=facts.integer("expert_used_count") or 0,
        sliding_window=sliding_window(facts),
        layers=_shared(found),
        input_bytes=input_bytes,
        output_bytes=output_bytes + tied_bytes,
        tied_bytes=tied_bytes,
        largest_tensor_bytes=max((t.n_bytes for block in blocks for t in block), default=0),
        is_causal=is_causal or is_projector,
        pooling=_pooling(facts),
        chat_template=_text(facts, "tokenizer.chat_template"),
        has_vision=_has_vision(facts, tensors),
        metadata=_metadata(parts[0]),
        file_bytes=sum(part.file_bytes for part in parts),
        ends=tuple(WeightInfo(t.name, t.shape, t.n_bytes, t.type_name) for t in others),
        recurrent=recurrent_shape(facts),
        warnings=(*parts[0].warnings, *dict.fromkeys(facts.warnings)),
    )


def _shared(found: Sequence[LayerInfo]) -> tuple[LayerInfo, ...]:
    """The same layers, one object for all that are equal: quicker to tell apart, and smaller."""
    known: dict[LayerInfo, LayerInfo] = {}
    return tuple(known.setdefault(layer, layer) for layer in found)


def _blocks(
    facts: Facts, tensors: list[Tensor]
) -> tuple[tuple[tuple[Tensor, ...], ...], list[Tensor]]:
    """Tensors by repeating block, and those outside of blocks."""
    inside: dict[int, list[Tensor]] = {}
    outside = []
    is_output = facts.architecture in _SHORT_CONVOLUTIONS
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match is not None:
            inside.setdefault(int(match[1]), []).append(tensor)
        elif tensor.name.startswith(_FIRST) and not is_output:
            # The engine loads them with the first layer, not with the input (llama-arch.cpp).
            inside.setdefault(0, []).append(tensor)
        else:
            outside.append(tensor)
    counted = max(inside, default=-1) + 1
    n_layer = facts.integer("block_count")
    if n_layer is None and facts.architecture != "clip":
        n_layer = facts.expected("block_count", counted)
    n_layer = n_layer or 0
    if max(n_layer, counted) > MAX_LAYERS:
        raise GgufError(
            GgufKind.ABSURD, f"absurd: {max(n_layer, counted)} layers (at most {MAX_LAYERS})"
        )
    if counted > n_layer:
        facts.warnings.append(f"the file holds {counted} blocks and names {n_layer}: all count")
    blocks = (tuple(inside.get(i, ())) for i in range(max(n_layer, counted)))
    return tuple(blocks), outside


def _ends(arch: str, others: list[Tensor]) -> tuple[int, int]:
    """Bytes of the tensors that stay with the input and of those that follow the output layer."""
    input_bytes = output_bytes = 0
    for tensor in others:
        if tensor.name.startswith(_INPUTS):
            input_bytes += tensor.n_bytes
        elif arch == "clip" or not tensor.name.startswith(_NOT_LOADED):
            output_bytes += tensor.n_bytes
    return input_bytes, output_bytes


def _is_tied(arch: str, by_name: dict[str, Tensor]) -> bool:
    if "output.weight" in by_name or arch in _READ_TWICE:
        return False
    return arch == "gemma-embedding" or arch not in ENCODERS


def _dimension(tensor: Tensor | None, axis: int) -> int:
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else 0


def _n_vocab(facts: Facts, embedding: Tensor | None) -> int:
    tokens = facts.header.pairs.get("tokenizer.ggml.tokens")
    if isinstance(tokens, GgufArray):
        return tokens.n_items
    return facts.integer("vocab_size") or _dimension(embedding, 1)


def _digest(parts: Sequence[GgufHeader]) -> str:
    if len(parts) == 1:
        return parts[0].digest
    return hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()


def _text(facts: Facts, key: str) -> str | None:
    value = facts.scalar(key)
    return value if isinstance(value, str) else None


def _quantization(facts: Facts) -> str:
    value = facts.scalar("general.file_type")
    return FILE_TYPES.get(value & ~_GUESSED, "unknown") if isinstance(value, int) else "unknown"


def _pooling(facts: Facts) -> str | None:
    value = facts.integer("pooling_type")
    return None if value is None else _POOLING.get(value, "none")


def _has_vision(facts: Facts, tensors: list[Tensor]) -> bool:
    if facts.architecture == "clip":
        return facts.scalar("clip.has_vision_encoder") is True
    return any(tensor.name.startswith("v.") for tensor in tensors)


def _metadata(header: GgufHeader) -> tuple[tuple[str, MetadataValue], ...]:
    return tuple(
        (key, None if isinstance(value, GgufArray) else value)
        for key, value in header.pairs.items()
    )
