"""What a model can be asked for, read off its file; Ollama's names and its rules for Jinja."""

from collections.abc import Mapping
from enum import StrEnum

from planners.model import MetadataValue, ModelInfo, ServedModel


class Capability(StrEnum):
    """As /api/show lists them."""

    COMPLETION = "completion"
    EMBEDDING = "embedding"
    TOOLS = "tools"
    THINKING = "thinking"
    VISION = "vision"
    INSERT = "insert"
    AUDIO = "audio"
    RERANK = "rerank"
    """Ours: Ollama serves no such models."""


_FIM_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
)


def capabilities(served: ServedModel) -> tuple[Capability, ...]:
    """What the model was made for, in the order Ollama lists it."""
    info, projector = served.info, served.projector
    if info.is_embedding:
        return (Capability.RERANK if info.is_reranker else Capability.EMBEDDING,)
    template = info.chat_template or ""
    # A projector that cannot be read is taken for what nearly all are.
    sees = served.settings.mmproj_path is not None if projector is None else projector.has_vision
    can = {
        Capability.COMPLETION: True,
        Capability.TOOLS: "tools" in template or "tool_call" in template,
        Capability.INSERT: _fills_in(dict(info.metadata)),
        Capability.VISION: info.has_vision or sees,
        Capability.AUDIO: projector is not None and _hears(projector),
        Capability.THINKING: _thinks(template),
    }
    return tuple(capability for capability, holds in can.items() if holds)


def _hears(projector: ModelInfo) -> bool:
    return dict(projector.metadata).get("clip.has_audio_encoder") is True


def _thinks(template: str) -> bool:
    """True where the template speaks of thinking: its tags, or a reasoning field of its own."""
    tagged = "<think>" in template and "</think>" in template
    return tagged or "reasoning_content" in template or "<|channel|>analysis" in template


def _fills_in(metadata: Mapping[str, MetadataValue]) -> bool:
    """True where the vocabulary names all three fill-in-the-middle tokens, by new or old keys."""
    return all(any(metadata.get(key) is not None for key in keys) for keys in _FIM_KEYS)
