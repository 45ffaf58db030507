"""What of a request would end a child for everybody: refused, before it reaches one.

llama-server (b10434) follows groups within groups, of grammars and of the patterns in schemas and
triggers, and rules that name rules, by recursion: some ten thousand, or hundred thousand, end it
with SIGSEGV. How deep they lie is not worked out; that there are so many is enough.
"""

from typing import Literal

import msgspec

from proxy.bodies import decoded, texts_in
from proxy.errors import BadRequest

MAX_GROUPS, MAX_RULES = 4096, 16384
"""In one text. A child with a stack of 8 MiB bears 5000 groups in a pattern, and 50000 rules."""
MAX_WINDOW = 1 << 20
"""Tokens to be held against repetition: no context is longer, and a child reserves all of them."""

_SHORT_BYTES = MAX_GROUPS
"""What is no longer cannot hold as many."""
_HINTS = (b"(", b"::=", rb"\u00")
"""A body with fewer of these needs no closer look; the last is how any of them may be escaped."""
_HOLDERS = ("grammar", "grammar_triggers", "json_schema", "response_format", "tools")
_ANY = msgspec.json.Decoder()


class GrammarTooLarge(BadRequest):
    """A grammar, or a pattern in a schema, that could end the child."""

    code = "grammar_too_large"

    def __init__(self, what: str, *, param: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{param} holds a text with more than {limit} {what}", param=param)


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

    def check(self) -> None:
        """Raises BadRequest for what a child would not survive."""
        _check_window(self.repeat_last_n, param="repeat_last_n")
        _check_window(self.dry_penalty_last_n, param="dry_penalty_last_n")
        if bytes(self.chat_parser) not in (b"", b"null"):
            raise BadRequest("chat_parser is not offered", param="chat_parser")


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


def _check_window(n_tokens: float | None, *, param: str) -> None:
    if n_tokens is not None and n_tokens > MAX_WINDOW:
        reason = f"{param} must be at most {MAX_WINDOW}, or -1 for the whole context"
        raise BadRequest(reason, param=param)
