"""What a model can be asked for, read off its file; Ollama's names and its rules for Jinja."""

from collections.abc import Mapping
from enum import StrEnum

from planners.model import MetadataValue, ModelInfo


class Capability(StrEnum):
    """As /api/show lists them."""

    COMPLETION = "completion"
    EMBEDDING = "embedding"
    TOOLS = "tools"
    THINKING = "thinking"
    VISION = "vision"
    INSERT = "insert"


_FIM_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
)


def capabilities(info: ModelInfo, *, has_projector: bool = False) -> tuple[Capability, ...]:
    """What the model can do, in the order Ollama lists it."""
    if info.is_embedding:
        return (Capability.EMBEDDING,)
    template = info.chat_template or ""
    can = {
        Capability.COMPLETION: True,
        Capability.TOOLS: "tools" in template or "tool_call" in template,
        Capability.INSERT: _fills_in(dict(info.metadata)),
        Capability.VISION: info.has_vision or has_projector,
        Capability.THINKING: _thinks(template),
    }
    return tuple(capability for capability, holds in can.items() if holds)


def _thinks(template: str) -> bool:
    """True where the template speaks of thinking: its tags, or a reasoning field of its own."""
    tagged = "<think>" in template and "</think>" in template
    return tagged or "reasoning_content" in template or "<|channel|>analysis" in template


def _fills_in(metadata: Mapping[str, MetadataValue]) -> bool:
    """True where the vocabulary names all three fill-in-the-middle tokens, by new or old keys."""
    return all(any(metadata.get(key) is not None for key in keys) for keys in _FIM_KEYS)
