"""Bounds a request's prompt to the context it asks for, where its child has more.

The child counts the tokens; it is asked only where the prompt is so long that it may be too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from planners.model import ServedModel
from proxy.door import Door
from proxy.errors import NumCtxExceeded
from proxy.forward import ask
from supervisor.lease import Lease


class _Rendered(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: tuple[int, ...]


RENDERED = msgspec.json.Decoder(_Rendered)
"""Of /apply-template's reply."""
TOKENS = msgspec.json.Decoder(_Tokens)
"""Of /tokenize's reply."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the child is to read: a chat to be rendered, or texts and token ids."""

    chat: bytes = b""
    """A body with `messages`; empty where there is none."""
    texts: tuple[str, ...] = ()
    n_ids: int = 0

    @classmethod
    def of(cls, told: Mapping[str, object]) -> "Prompt":
        """The prompt in a body for one of the child's completion routes."""
        if "messages" in told:
            return cls(chat=msgspec.json.encode(told))
        prompt = told.get("prompt", "")
        parts = prompt if isinstance(prompt, list) else [prompt]
        parts = [*parts, told.get("input_prefix", ""), told.get("input_suffix", "")]
        texts = tuple(part for part in parts if isinstance(part, str))
        return cls(texts=texts, n_ids=len(parts) - len(texts))


@dataclass(frozen=True, slots=True)
class Bound:
    """One prompt, and the most tokens it may have."""

    door: Door
    model: ServedModel
    name: str
    """The model as its caller calls it."""
    prompt: Prompt
    n_ctx: int

    async def check(self, lease: Lease) -> None:
        """Raises NumCtxExceeded, ChildRefused, UpstreamError."""
        if self.n_ctx >= lease.context or self._is_surely_short():
            return  # more than is loaded is refused by the child itself
        texts = self.prompt.texts
        if self.prompt.chat:
            body = self.prompt.chat
            rendered = await ask(self.door, lease, RENDERED, target=b"/apply-template", body=body)
            texts = (rendered.prompt,)
        n_prompt = self.prompt.n_ids + sum(len(text.encode()) for text in texts)
        if n_prompt <= self.n_ctx:  # a token is a byte at least
            return
        n_prompt = self.prompt.n_ids
        for text in texts:
            told = {"content": text, "add_special": True, "parse_special": True}
            body = msgspec.json.encode(told)
            counted = await ask(self.door, lease, TOKENS, target=b"/tokenize", body=body)
            n_prompt += len(counted.tokens)
        if n_prompt > self.n_ctx:
            raise NumCtxExceeded(
                model=self.name, n_prompt=n_prompt, n_ctx=self.n_ctx, n_loaded=lease.context
            )

    def _is_surely_short(self) -> bool:
        """Whether what is sent and what a template may add are fewer bytes than n_ctx."""
        added = len((self.model.info.chat_template or "").encode()) if self.prompt.chat else 0
        sent = len(self.prompt.chat) + sum(len(text.encode()) for text in self.prompt.texts)
        return self.prompt.n_ids + sent + added <= self.n_ctx
