"""What of a request would end a child for everybody: refused, before it reaches one.

llama-server (b10434) follows groups within groups, of grammars and of the patterns in schemas and
triggers, and rules that name rules, by recursion: some ten thousand, or hundred thousand, end it
with SIGSEGV. How deep they lie is not worked out; that there are so many is enough.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from proxy.bodies import decoded, texts_in
from proxy.errors import BadRequest

MAX_GROUPS, MAX_RULES = 4096, 16384
"""In one text. A child with a stack of 8 MiB bears 5000 groups in a pattern, and 50000 rules."""
MAX_WINDOW = 1 << 20
"""Tokens to be held against repetition: no context is longer, and a child reserves all of them."""
FEW_PROBABILITIES = 64  # OpenAI's own limit is 20
"""Of a token, however long the reply is. A child keeps 1 KiB for each until the reply's end."""
MAX_PROBABILITIES = 1 << 17
"""Of a whole reply, where its length is told: one token may have those of a whole vocabulary."""
MAX_MESSAGES = 4096
"""Of one chat: a child's template takes their number squared, 10 s for these, and is not stopped.
"""

TOKEN_BYTES = 64
"""Of a text's tokens, one with another, at most: prose has 4, and a run of blanks 30."""
TEXT_BYTES = 1 << 20
"""Which any context may be told, some to be cut: a child takes seconds to count their tokens."""

TEXTS_BYTES = 8 << 20
"""Of a request's texts together, where there are several: a child takes 3 s for prose, and 12 s for
letters without blanks, to count their tokens, whoever else waits. OpenAI takes 300,000 tokens.
"""

_SHORT_BYTES = MAX_GROUPS
"""What is no longer cannot hold as many."""
_HINTS = (b"(", b"::=", rb"\u00")
"""A body with fewer of these needs no closer look; the last is how any of them may be escaped."""
_ROLES = (b'"role"', rb"\u00")
"""As _HINTS, of messages: one without a role is refused before it comes to the template."""
_MANY_BYTES = MAX_MESSAGES * len(_ROLES[1])
_HOLDERS = ("grammar", "grammar_triggers", "json_schema", "response_format", "tools")
_MEDIA = ("image_url", "input_audio", "input_video")
_ANY = msgspec.json.Decoder()


class GrammarTooLarge(BadRequest):
    """A grammar, or a pattern in a schema, that could end the child."""

    code = "grammar_too_large"

    def __init__(self, what: str, *, param: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{param} holds a text with more than {limit} {what}", param=param)


class TooManyMessages(BadRequest):
    """A chat that would keep a processor of the child's busy for minutes."""

    code = "too_many_messages"

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(f"messages holds more than {limit} messages", param="messages")


class TextTooLong(BadRequest):
    """More text than any context of that size holds, whose tokens a child would count for minutes.

    It counts on when its caller has left, and a caller may send such a text again and again.
    """

    code = "context_length_exceeded"

    def __init__(self, *, model: str, n_bytes: int, n_ctx: int) -> None:
        self.n_bytes, self.n_ctx = n_bytes, n_ctx
        super().__init__(
            f"the prompt of {n_bytes} bytes is far more than the context of {n_ctx} tokens that"
            f" {model} has; shorten it, ask for a larger num_ctx, or set a larger context in the"
            " [[model]] of that name in the configuration"
        )


class TextsTooLong(BadRequest):
    """Several texts that each may fit, whose tokens a child would count for minutes together."""

    code = "too_much_text"

    def __init__(self, *, n_bytes: int, limit_bytes: int) -> None:
        self.n_bytes, self.limit_bytes = n_bytes, limit_bytes
        super().__init__(
            f"the texts of this request are {n_bytes} bytes together, and {limit_bytes} are read"
            " at a time; send fewer of them in one request"
        )


class TooManyProbabilities(BadRequest):
    """A reply that would not fit into the machine's memory."""

    code = "too_many_probabilities"

    def __init__(self, *, param: str) -> None:
        super().__init__(
            f"{param} must be at most {FEW_PROBABILITIES}, or max_tokens times it at most"
            f" {MAX_PROBABILITIES}",
            param=param,
        )


class _Trigger(msgspec.Struct):
    type: Literal[0, 1, 2, 3]
    """A token, a word, a pattern, a pattern of the whole text; any other kind ends a child."""


class EngineMembers(msgspec.Struct):
    """Members of llama-server's own that its routes of text take as they are told."""

    repeat_last_n: float | None = None
    dry_penalty_last_n: float | None = None
    grammar_triggers: tuple[_Trigger, ...] | None = None
    chat_parser: msgspec.Raw = msgspec.Raw()
    """How its chat route tells the rest of it to read a reply: one that holds itself ends it."""
    logprobs: msgspec.Raw = msgspec.Raw()
    """A flag in a chat, a number in a completion."""
    top_logprobs: msgspec.Raw = msgspec.Raw()
    n_probs: msgspec.Raw = msgspec.Raw()
    """llama-server's own name for them."""
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    n_predict: msgspec.Raw = msgspec.Raw()

    def check(self) -> None:
        """Raises BadRequest for what a child would not survive."""
        _check_window(self.repeat_last_n, param="repeat_last_n")
        _check_window(self.dry_penalty_last_n, param="dry_penalty_last_n")
        if bytes(self.chat_parser) not in (b"", b"null"):
            raise BadRequest("chat_parser is not offered", param="chat_parser")
        for param in ("logprobs", "top_logprobs", "n_probs"):
            if not bytes(getattr(self, param)):
                continue
            n_probs = _number(getattr(self, param))
            if n_probs > FEW_PROBABILITIES and n_probs * self._most_tokens() > MAX_PROBABILITIES:
                raise TooManyProbabilities(param=param)

    def _most_tokens(self) -> float:
        """What the reply is bounded to, by any name; infinity where it is not."""
        named = (self.max_tokens, self.max_completion_tokens, self.n_predict)
        told = [_number(bound) for bound in named if bytes(bound) not in (b"", b"null")]
        return max(told) if told and min(told) >= 0 else math.inf


def check_body(body: bytes) -> None:
    """Raises TooManyMessages, GrammarTooLarge for a child's request that it would not bear."""
    if len(body) > min(_MANY_BYTES, _SHORT_BYTES):
        check_messages(body)
        check_grammars(body)


def check_messages(body: bytes) -> None:
    """Raises TooManyMessages for a child's chat of more than it gets through."""
    if len(body) <= _MANY_BYTES or sum(map(body.count, _ROLES)) <= MAX_MESSAGES:
        return
    told = decoded(body, _ANY)
    messages = told.get("messages") if isinstance(told, dict) else None
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise TooManyMessages(limit=MAX_MESSAGES)


def check_grammars(body: bytes) -> None:
    """Raises GrammarTooLarge for a child's request with more groups or rules than it bears."""
    if len(body) <= _SHORT_BYTES or sum(map(body.count, _HINTS)) <= MAX_GROUPS:
        return
    told = decoded(body, _ANY)
    for param in _HOLDERS if isinstance(told, dict) else ():
        for text in texts_in(told.get(param)):
            if text.count("(") > MAX_GROUPS:
                raise GrammarTooLarge("opening brackets", param=param, limit=MAX_GROUPS)
            if text.count("::=") > MAX_RULES:
                raise GrammarTooLarge("rules", param=param, limit=MAX_RULES)


def check_text(body: bytes, *, model: str, n_ctx: int) -> None:
    """Raises TextTooLong for a child's request with a chat, or one text, of far over n_ctx.

    Raises TextsTooLong for several that are over TEXTS_BYTES together, if n_ctx is no larger.
    """
    most_bytes = max(TEXT_BYTES, n_ctx * TOKEN_BYTES)
    if len(body) <= most_bytes:
        return
    told = decoded(body, _ANY)
    if not isinstance(told, dict):
        return
    if "messages" in told:
        n_bytes = _n_bytes(texts_in(told)) - _n_bytes(_media(told["messages"]))
    else:
        sizes = [len(text.encode()) for text in texts_in({**told, "": ""})]
        n_bytes = max(sizes)
        _check_together(sum(sizes), most_bytes=max(TEXTS_BYTES, most_bytes))
    if n_bytes > most_bytes:
        raise TextTooLong(model=model, n_bytes=n_bytes, n_ctx=n_ctx)


def check_pairs(query: str, documents: Sequence[str]) -> None:
    """Raises TextsTooLong: a child reads the query anew with each document."""
    n_bytes = len(query.encode()) * len(documents) + _n_bytes(documents)
    _check_together(n_bytes, most_bytes=TEXTS_BYTES)


def _check_together(n_bytes: int, *, most_bytes: int) -> None:
    if n_bytes > most_bytes:
        raise TextsTooLong(n_bytes=n_bytes, limit_bytes=most_bytes)


def _n_bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _media(messages: object) -> Iterator[str]:
    """What parts of messages hold of images and audio, which are no text."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            for key in _MEDIA if isinstance(part, dict) else ():
                yield from texts_in(part.get(key))


def _check_window(n_tokens: float | None, *, param: str) -> None:
    if n_tokens is not None and n_tokens > MAX_WINDOW:
        reason = f"{param} must be at most {MAX_WINDOW}, or -1 for the whole context"
        raise BadRequest(reason, param=param)


def _number(told: msgspec.Raw) -> float:
    """A number as it was told; 0 for nothing, and for what the child itself refuses or flags."""
    value = msgspec.json.decode(told) if bytes(told) else 0
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
