"""How a reply goes on after its child is gone: the decision, and the request that is sent.

    nothing delivered ─────────────────────────────────── Resend
    finished, or nothing left to write ────────────────── Finish
    its cache went along, plain text ──────────────────── Continue   exact where greedy
    the same math, and a seed ─────────────────────────── Replay     exact
    text, JSON of a chat, on other math ───────────────── Continue   faithful
    a tool call, a grammar, several choices, thoughts ─── Replay     if it comes out the same
    the same, with no seed ────────────────────────────── Impossible

Pure: bytes and values in, values out. What was measured of each way: llama-server b10434.
"""

import msgspec

from proxy.child.chunks import ABSENT, NULL
from proxy.continuity.delivered import Kind, Told

MAX_SEED = (1 << 32) - 2  # uint32; the last one means a random seed (llama.h LLAMA_DEFAULT_SEED)


class Resend(msgspec.Struct, frozen=True):
    """Send the request as it was: nobody has seen anything of the reply."""


class Replay(msgspec.Struct, frozen=True):
    """Send the request as it was, with `extra` members, and drop what was delivered."""

    extra: bytes = b""
    """Which have the child read the prompt as the first one did: in other batches it rounds
    otherwise, as where a slot knows the beginning of it."""
    otherwise: str = ""
    """Why there is no other way, where this one may come to other words; "" where it will not."""


class Continue(msgspec.Struct, frozen=True):
    """Send the request with `extra` members, which have the child write on where it ended."""

    extra: bytes
    sent_tokens: int
    """Of the reply, as counted before; the child's own count of the prompt tells it exactly."""
    is_exact: bool
    """Whether the whole is what one child would have written."""


class Finish(msgspec.Struct, frozen=True):
    """Write the end: all that the child would have written was delivered."""

    finish_reason: str
    sent_tokens: int


class Impossible(msgspec.Struct, frozen=True):
    """Tell the caller: no way would give the reply that was begun."""

    reason: str


Way = Resend | Replay | Continue | Finish | Impossible


class Asked(msgspec.Struct):
    """What of a request decides how its reply can go on."""

    messages: list[msgspec.Raw] = msgspec.field(default_factory=list)
    prompt: msgspec.Raw = ABSENT
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    n: int | None = None
    n_cmpl: int | None = None
    echo: bool | None = None
    response_format: msgspec.Raw = NULL
    json_schema: msgspec.Raw = NULL
    grammar: msgspec.Raw = NULL
    tools: list[msgspec.Raw] | None = None
    continue_final_message: bool | str | None = None
    stream_options: msgspec.Raw = NULL

    @property
    def is_greedy(self) -> bool:
        """Whether chance has no part in it; a child's default temperature is not 0."""
        return self.temperature is not None and self.temperature <= 0

    @property
    def has_seed(self) -> bool:
        """Whether the same request gives the same reply."""
        return self.is_greedy or (self.seed is not None and 0 <= self.seed <= MAX_SEED)

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar of any kind holds the reply."""
        is_schema, is_grammar = _is_told(self.json_schema), _is_told(self.grammar)
        return is_schema or is_grammar or _is_json(self.response_format)

    @property
    def limit_tokens(self) -> int | None:
        """The most that may be written; None for as many as there is room for."""
        told = (self.n_predict, self.max_tokens, self.max_completion_tokens)
        limits = [limit for limit in told if limit is not None and limit >= 0]
        return min(limits, default=None)


class _Format(msgspec.Struct):
    type: str = "text"


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL


_ASKED = msgspec.json.Decoder(Asked)
_FORMAT = msgspec.json.Decoder(_Format)
_MESSAGE = msgspec.json.Decoder(_Message)
_TEXT = msgspec.json.Decoder(str)
_PARTS = msgspec.json.Decoder(list[str | int])


def _is_told(member: msgspec.Raw) -> bool:
    return member is not NULL and member not in (NULL, ABSENT)  # NULL itself where there is none


def _is_json(response_format: msgspec.Raw) -> bool:
    if not _is_told(response_format):
        return False
    try:
        return _FORMAT.decode(response_format).type != "text"
    except msgspec.DecodeError:
        return True


def asked_by(body: bytes) -> Asked | None:
    """What a body asks for; None where it is of another shape, which a child refuses anyway."""
    try:
        return _ASKED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def seed_member(asked: Asked, *, chance: int) -> bytes:
    """The member that fixes a seed, empty where the caller has: a default one is drawn anew."""
    if asked.seed is not None and 0 <= asked.seed <= MAX_SEED:
        return b""
    return b'"seed":%d' % (chance % (MAX_SEED + 1))


def way_on(
    asked: Asked,
    told: Told,
    *,
    keeps_math: bool,
    is_restored: bool,
    sent_tokens: int,
    ids: tuple[int, ...] = (),
) -> Way:
    """How the reply that `told` is a beginning of goes on.

    `keeps_math`: the next child computes as the last one did (planners.moving.migration).
    `is_restored`: the slot's cache went along. `sent_tokens`: of what was delivered, as the child
    counted them, else of `written` tokenized anew. `ids`: the prompt and what was delivered, in the
    tokens of the slot's cache, where they are known.
    """
    if told.finishes and len(told.finishes) >= _n_choices(asked):
        return Finish(told.finishes.get(0, "stop"), sent_tokens)
    if not told.has_text:
        return Resend()
    obstacle = _obstacle(asked, told)
    can_replay = keeps_math and asked.has_seed
    if can_replay and (obstacle is not None or not is_restored):
        return _replay(told)  # of a cache that went along the pause would be as long as the reply
    if obstacle is not None and not (obstacle.is_loose and told.kind is Kind.CHAT):
        reason = f"{obstacle.why}, and the next child would not write the same again"
        return _replay(told, otherwise=reason) if asked.has_seed else Impossible(reason)
    left = None if asked.limit_tokens is None else asked.limit_tokens - sent_tokens
    if left is not None and left <= 0:  # a child writes a token for 0, and without end for less
        return Finish("length", sent_tokens)
    extra = _extra(asked, told, ids, left=left)
    if isinstance(extra, Impossible):
        return _replay(told, otherwise=extra.reason) if asked.has_seed else extra
    is_exact = is_restored and keeps_math and asked.is_greedy and obstacle is None
    return Continue(extra, sent_tokens, is_exact)


def _replay(told: Told, *, otherwise: str = "") -> Replay:
    was_cached = told.prompt is None or told.prompt.cache > 0
    return Replay(b"" if was_cached else b'"cache_prompt":false', otherwise)


def goes_on_anywhere(asked: Asked | None, kind: Kind) -> bool:
    """Whether text carries the reply to another child, whatever that one computes on.

    What a chat's model thinks is not known before it does.
    """
    if asked is None:
        return True  # a child refuses it
    obstacle = _obstacle(asked, Told(kind))
    if obstacle is None:
        return True
    return obstacle.is_loose and kind is Kind.CHAT and not asked.tools


def written(asked: Asked, told: Told) -> str:
    """What the model wrote of the text that was delivered: a child echoes the caller's own
    beginning of a reply, unless it was told to go on with it.
    """
    begun = _begun(asked, told.kind)
    return told.content[len(begun) :] if told.content.startswith(begun) else told.content


def _begun(asked: Asked, kind: Kind) -> str:
    """The caller's own beginning, where the child echoes it; else nothing."""
    last = _last_message(asked.messages) if kind is Kind.CHAT else None
    if last is None or last.role != "assistant" or asked.continue_final_message:
        return ""
    return _as_text(last.content) or ""


class _Obstacle(msgspec.Struct, frozen=True):
    """Why text alone does not carry a reply."""

    why: str
    is_loose: bool = False
    """A chat goes on from its text all the same, validly, if not in the same words."""


def _obstacle(asked: Asked, told: Told) -> _Obstacle | None:
    if _n_choices(asked) > 1 or any(index for index, _ in told.texts):
        return _Obstacle("several choices were begun")
    if told.kind is Kind.INFILL:
        return _Obstacle("a gap was being filled")
    if told.has_calls:
        return _Obstacle("a tool call was begun")
    if told.has_reasoning:
        return _Obstacle("the model was thinking")
    if asked.echo:
        return _Obstacle("the prompt was echoed")
    if asked.is_constrained:
        return _Obstacle("a grammar holds the reply", is_loose=True)
    if asked.tools:
        return _Obstacle("tools are offered", is_loose=True)
    return None


def _n_choices(asked: Asked) -> int:
    told = max(asked.n or 1, asked.n_cmpl or 1)
    return told * _n_prompts(asked.prompt)


def _n_prompts(prompt: msgspec.Raw) -> int:
    """How many prompts the child reads: an array of texts alone is several."""
    try:
        told = msgspec.json.decode(prompt) if prompt != ABSENT else ""
    except (msgspec.DecodeError, RecursionError):
        return 1
    if not isinstance(told, list) or any(isinstance(item, int) for item in told):
        return 1
    return max(1, len(told))


def _extra(
    asked: Asked, told: Told, ids: tuple[int, ...], *, left: int | None
) -> bytes | Impossible:
    """The members that make a continuation of a request; the last of equal keys counts."""
    if told.kind is Kind.CHAT:
        whole = _chat_members(asked, told)
    else:
        whole = _text_members(asked, told, ids)
    if isinstance(whole, Impossible):
        return whole
    if left is not None:
        for name in ("n_predict", "max_tokens", "max_completion_tokens"):
            if getattr(asked, name) is not None:
                whole += b',"%s":%d' % (name.encode(), left)
    if not asked.is_greedy and asked.seed is not None:
        # The same seed would draw the same chances again, for other tokens.
        whole += b',"seed":%d' % ((asked.seed + 1) % (MAX_SEED + 1))
    return whole


def _chat_members(asked: Asked, told: Told) -> bytes | Impossible:
    messages, text = list(asked.messages), told.content
    last = _last_message(messages)
    if last is not None and last.role == "assistant":
        if last.tool_calls not in (NULL, ABSENT):
            return Impossible("the caller's own beginning holds a tool call")
        begun = _as_text(last.content)
        if begun is None:
            return Impossible("the caller's own beginning of the reply is no plain text")
        messages.pop()
        if asked.continue_final_message:  # else the child has echoed it, and it is in `text`
            text = begun + text
    message = msgspec.json.encode({"role": "assistant", "content": text})
    return b'"messages":[%s],"continue_final_message":true,"add_generation_prompt":false' % (
        b",".join([*map(bytes, messages), message])
    )


def _last_message(messages: list[msgspec.Raw]) -> _Message | None:
    try:
        return _MESSAGE.decode(messages[-1]) if messages else None
    except msgspec.DecodeError:
        return None


def _text_members(asked: Asked, told: Told, ids: tuple[int, ...]) -> bytes | Impossible:
    if ids:
        return b'"prompt":' + msgspec.json.encode(ids)
    prompt = _as_text(asked.prompt)
    if prompt is not None:
        return b'"prompt":' + msgspec.json.encode(prompt + told.content)
    try:
        parts = _PARTS.decode(asked.prompt)
    except msgspec.DecodeError:
        return Impossible("the prompt is neither text nor tokens")
    return b'"prompt":' + msgspec.json.encode([*parts, told.content])


def _as_text(raw: msgspec.Raw) -> str | None:
    try:
        return _TEXT.decode(raw)
    except msgspec.DecodeError:
        return None
