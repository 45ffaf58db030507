"""What can go wrong with an exchange, and the one table from exception to reply in each dialect.

The message is the exception's own sentence, of a duration after its field's name; an exception
outside the table is a bug.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from planners.durations import BadDuration
from supervisor.leases.lease import LineFull, ModelUnavailable, Stopping, WaitTimedOut


class Dialect(Enum):
    """How a caller expects to be spoken to."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


class ProxyError(Exception):
    """An exchange that could not be served."""


class CallerLeft(ProxyError):
    """The caller closed its connection; nobody is left to answer."""

    def __init__(self) -> None:
        super().__init__("the caller closed its connection")


class BadRequest(ProxyError):
    """What was asked makes no sense, or is not offered."""

    status = 400
    code: str | None = None
    challenge: str | None = None
    """WWW-Authenticate of the reply, where another key would help."""
    remedy = ""
    """What to do, where the message is one that clients know as it is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class BodyTooLarge(BadRequest):
    """The body is over the limit."""

    status = 413
    code = "body_too_large"

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the request body exceeds the limit of {limit_bytes} bytes;"
            " raise max_body under [server] in the configuration"
        )


class BadJson(BadRequest):
    """The body is no JSON, or not of the shape that the route reads."""

    code = "invalid_json"


class TooManyValues(BadRequest):
    """The body is JSON of so many values that decoding it would hold up everybody else."""

    code = "too_many_values"

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the request body holds more than {limit} values; send fewer at a time")


class BadOption(BadRequest):
    """An Ollama option of the wrong type. Ollama answers with 500, as if the fault were its own."""


class UnknownModel(BadRequest):
    """No model of that name is offered."""

    status = 404
    code = "model_not_found"

    def __init__(
        self, name: str, message: str | None = None, *, near: Sequence[str] = (), hint: str = ""
    ) -> None:
        """`near`: names that may be meant; `hint`: what to do where there are none, as a clause."""
        self.name, self.near = name, near
        said = message or f"model '{name}' not found"
        meant = " or ".join(f"'{each}'" for each in near)
        told = f"did you mean {meant}?" if near else hint
        super().__init__(f"{said}; {told}" if told else said, param="model")


class UnusableModel(BadRequest):
    """A model of that name is there, but its file is broken, or is no model."""

    code = "model_unusable"

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"model '{name}' cannot be used: {reason}", param="model")


class CloudModel(BadRequest):
    """A name of ollama.com's cloud; this daemon is local."""

    status = 403

    def __init__(self) -> None:
        super().__init__("ollama cloud is disabled: remote model is unavailable", param="model")


class NotCapable(BadRequest):
    """A model was asked for what its file is not made for."""

    code = "not_supported_error"

    def __init__(self, name: str, what: str, *, because: str) -> None:
        self.name, self.what = name, what
        super().__init__(f'"{name}" does not support {what}: {because}', param="model")


class PromptTooLong(ProxyError):
    """The prompt has more tokens than a slot holds, or leaves no room there for a reply."""

    def __init__(
        self, *, model: str, n_prompt: int, n_ctx: int, place: tuple[int, int] | None = None
    ) -> None:
        self.model, self.n_prompt, self.n_ctx, self.place = model, n_prompt, n_ctx, place
        wanted = _roomy(n_prompt)
        super().__init__(
            f"{self._subject()} {'and a reply exceed' if n_prompt == n_ctx else 'exceeds'} the"
            f" context of {n_ctx} tokens that {model} has; shorten it, ask for a num_ctx of"
            f" {wanted}, or set context = {wanted} in the [[model]] of that name in the"
            " configuration"
        )

    def _subject(self) -> str:
        """The prompt; of several, which."""
        if self.place is None:
            return f"the prompt of {self.n_prompt} tokens"
        return f"prompt {self.place[0]} of {self.place[1]}, of {self.n_prompt} tokens,"

    def at(self, place: tuple[int, int], *, n_prompt: int) -> "PromptTooLong":
        """The same, of one of several prompts: its number, from 1, and how many there are."""
        return PromptTooLong(model=self.model, n_prompt=n_prompt, n_ctx=self.n_ctx, place=place)


class NumCtxExceeded(PromptTooLong):
    """The prompt has more tokens than its own request asked a context for."""

    def __init__(
        self,
        *,
        model: str,
        n_prompt: int,
        n_ctx: int,
        n_loaded: int,
        place: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(model=model, n_prompt=n_prompt, n_ctx=n_ctx, place=place)
        self.n_loaded = n_loaded
        self.args = (
            f"{self._subject()} exceeds the context of {n_ctx} tokens that its request asks for;"
            f" raise num_ctx ({model} is loaded with {n_loaded}), or shorten it",
        )


class InfillTooLong(PromptTooLong):
    """A gap's prefix or suffix has more tokens than an infill reads of it."""

    def __init__(self, *, model: str, side: str, n_prompt: int, most: int) -> None:
        super().__init__(model=model, n_prompt=n_prompt, n_ctx=most)
        self.side = side
        self.args = (
            f"the {side} of {n_prompt} tokens exceeds the {most} tokens that {model} reads on that"
            " side of a gap, a part of the batch that it is loaded with; send what is next to it",
        )


def _roomy(n_prompt: int) -> int:
    """A context for such a prompt: the next power of two with room for a reply."""
    return 1 << max(n_prompt + 1, 256).bit_length()


class ChildRefused(ProxyError):
    """llama-server answered with an error of its own, before any token."""

    def __init__(self, *, status: int, kind: str, message: str) -> None:
        self.status, self.kind = status, kind
        super().__init__(message)


class ChildFailed(ProxyError):
    """llama-server reported an error in mid-stream."""

    def __init__(self, message: str) -> None:
        super().__init__(f"an error was encountered while running the model: {message}")


class UpstreamError(ProxyError):
    """The connection to a child did not carry a whole reply."""

    def __init__(self, socket_path: str, message: str) -> None:
        self.socket_path = socket_path
        super().__init__(message)


class UpstreamGone(UpstreamError):
    """The child closed the connection, or does not listen any more."""

    def __init__(
        self, socket_path: str, *, before_any_byte: bool, cause: str | None = None, times: int = 1
    ) -> None:
        self.before_any_byte, self.cause, self.times = before_any_byte, cause, times
        when = "before it answered" if before_any_byte else "in the middle of its reply"
        often = f", {times} times on this request" if times > 1 else ""
        why = f": {cause}" if cause else "; inferenceosctl events tells why"
        super().__init__(socket_path, f"model runner has unexpectedly stopped {when}{often}{why}")

    def explained(self, cause: str | None, *, times: int) -> "UpstreamGone":
        """The same, with what ended the child, and how often this request has met that."""
        return UpstreamGone(
            self.socket_path, before_any_byte=self.before_any_byte, cause=cause, times=times
        )


class UpstreamBroken(UpstreamError):
    """The child's reply is not what a reply looks like."""

    def __init__(self, socket_path: str, reason: str) -> None:
        self.reason = reason
        super().__init__(socket_path, f"the model runner's reply is broken: {reason}")


class StreamCut(UpstreamBroken):
    """The child's stream of events stopped before the one that ends it."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(socket_path, "its stream ended before its end")


class UpstreamStalled(UpstreamError):
    """The child did not take the connection or the request in time."""

    def __init__(self, socket_path: str, *, doing: str, limit_s: float) -> None:
        self.doing, self.limit_s = doing, limit_s
        super().__init__(
            socket_path, f"the model runner did not {doing} within {limit_s:g} s; it may hang"
        )


class Answer(msgspec.Struct, frozen=True):
    """An error as a reply: what each dialect needs to word it."""

    status: int
    kind: str
    """OpenAI's and Anthropic's `type`."""
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    facts: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    """What goes beside the message, by its name."""
    is_final: bool = False
    """Asking again would do harm: the clients of OpenAI and Anthropic heed the header."""
    challenge: str | None = None
    """What a key would have to be like (WWW-Authenticate, RFC 6750)."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Retry-After in whole seconds, at least 1, where there is one; or the challenge."""
        if self.challenge is not None:
            return ((b"www-authenticate", self.challenge.encode()),)
        if self.is_final:
            return ((b"x-should-retry", b"false"),)
        if self.retry_after_s is None:
            return ()
        return ((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()),)


def answer(exc: Exception, dialect: Dialect) -> Answer | None:
    """The reply to `exc`, None where it is a bug (or the caller is gone)."""
    ollama = dialect is Dialect.OLLAMA
    busy = 529 if dialect is Dialect.ANTHROPIC else 503
    text = str(exc)
    match exc:
        case BadRequest():
            remedy = {"remedy": exc.remedy} if exc.remedy else {}
            return Answer(
                exc.status, _kind(exc.status), text, code=exc.code, param=exc.param,
                challenge=exc.challenge, facts=remedy,
            )  # fmt: skip
        case BadDuration():
            return Answer(400, _kind(400), f"keep_alive: {text}", param="keep_alive")
        case PromptTooLong():
            facts = {"n_prompt_tokens": exc.n_prompt, "n_ctx": exc.n_ctx}
            if exc.place is not None:
                facts["index"] = exc.place[0] - 1
            return Answer(400, _kind(400), text, code="context_length_exceeded", facts=facts)
        case ChildRefused():
            return Answer(exc.status, _kind(exc.status), text, code=exc.kind)
        case ChildFailed():
            return Answer(500, _kind(500), text, code="model_failed")
        case LineFull():
            facts = {"waiting": exc.waiting}
            return _busy(busy, text, "queue_full", exc.retry_after_s, facts)
        case WaitTimedOut():
            facts = {"place": exc.place, "waiting": exc.waiting}
            return _busy(busy, text, "wait_timed_out", exc.retry_after_s, facts)
        case ModelUnavailable():
            if exc.retry_after_s is not None:
                return _busy(busy, text, "model_unavailable", exc.retry_after_s)
            return Answer(500, _kind(500), text, code="model_unavailable")
        case Stopping():
            return _busy(busy, text, "stopping", 5.0)
        case UpstreamGone() if exc.times > 1:
            status = 500 if ollama else 502
            return Answer(status, _kind(502), text, code="request_ends_model", is_final=True)
        case UpstreamError():
            return Answer(500 if ollama else 502, _kind(502), text, code="model_lost")
    return None


def internal_error(request_id: str) -> Answer:
    """The reply to a bug: no facts, and where to look."""
    message = f"internal error; the daemon's log has the details under request_id {request_id}"
    return Answer(500, _kind(500), message, code="internal_error")


def body(said: Answer, dialect: Dialect) -> bytes:
    """`said` as the dialect's JSON error object."""
    if dialect is Dialect.OLLAMA:
        return msgspec.json.encode({"error": said.message, **said.facts})
    if dialect is Dialect.ANTHROPIC:
        kind, message = _ANTHROPIC_TYPES.get(said.status, "api_error"), said.message
        if "n_ctx" in said.facts:  # Claude Code knows a prompt to be compacted by these words
            n_prompt, n_ctx = said.facts["n_prompt_tokens"], said.facts["n_ctx"]
            message = f"prompt is too long: {n_prompt} tokens > {n_ctx} maximum; {message}"
        told = {"type": kind, "message": message, **said.facts}
        return msgspec.json.encode({"type": "error", "error": told})
    error = {
        "message": said.message,
        "type": said.kind,
        "param": said.param,
        "code": said.code,
        **said.facts,
    }
    return msgspec.json.encode({"error": error})


def event(said: Answer, dialect: Dialect, *, ndjson: bool) -> bytes:
    """`said` as the last thing in a stream that has begun."""
    told = body(said, dialect)
    if ndjson:
        return told + b"\n"
    name = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
    return name + b"data: " + told + b"\n\n"


def _busy(
    status: int,
    message: str,
    code: str,
    retry_after_s: float,
    facts: Mapping[str, int] | None = None,
) -> Answer:
    return Answer(
        status, _kind(503), message, code=code, retry_after_s=retry_after_s, facts=facts or {}
    )


def _kind(status: int) -> str:
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


_OPENAI_TYPES = {404: "not_found_error", 503: "overloaded_error", 501: "not_supported_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
