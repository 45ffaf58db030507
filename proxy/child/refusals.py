"""What llama-server's errors mean: whose fault it is, and which exception of ours says so."""

import re

import msgspec

from proxy.child.upstream import UpstreamResponse
from proxy.errors import BadJson, ChildRefused, PromptTooLong
from supervisor.leases.lease import Lease

ERROR_BYTES = 64 << 20
"""A child may say again what it was sent, indented by depth."""
MESSAGE_LENGTH = 4096
"""Characters of that which a caller is told."""


class _ChildError(msgspec.Struct):
    message: str = ""
    type: str = "server_error"
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _ChildErrorReply(msgspec.Struct):
    error: _ChildError = msgspec.field(default_factory=_ChildError)


_TOO_LARGE = re.compile(r"input \((\d+) tokens\) is too large .*batch size: (\d+)\)")
"""llama-server's (b10434) 500 to a text over the ubatch, which for embeddings is the context."""
_CALLERS_FAULTS = (
    " input is not supported",  # an image or audio for a model without a projector
    "Failed to parse ",  # messages, tools
    "Cannot use both ",
    "Unknown reasoning format",
    '"prompt" elements must be ',  # texts to embed of another type
    "Multimodal data provided, but model does not support",
    "vector::_M_range_check",  # an id to detokenize that is no token's
)
"""What llama-server (b10434) answers with 500 although it is the request that is wrong."""
_OUT_OF_MEMORY = "std::bad_alloc"
"""In what llama-server (b10434) answers, with 400 too, where it has no memory for a request."""
_ERROR_REPLY = msgspec.json.Decoder(_ChildErrorReply)


async def refusal(response: UpstreamResponse, lease: Lease) -> Exception:
    """The error that a child's reply with another status than 200 stands for."""
    told = await response.read(limit_bytes=ERROR_BYTES)
    try:
        error = _ERROR_REPLY.decode(told).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = _ChildError(message=told[:200].decode(errors="replace"))
    if error.n_prompt_tokens is not None and error.n_ctx is not None:
        return PromptTooLong(
            model=lease.model_id, n_prompt=error.n_prompt_tokens, n_ctx=error.n_ctx
        )
    if (told_of := _TOO_LARGE.match(error.message)) is not None:
        n_prompt, n_batch = int(told_of[1]), int(told_of[2])
        return PromptTooLong(model=lease.model_id, n_prompt=n_prompt, n_ctx=n_batch)
    if "json.exception." in error.message:  # a wrong body, which some builds answer with 500
        return BadJson(_told(error.message))
    message = _told(error.message or f"llama-server answered {response.status} without a message")
    if _OUT_OF_MEMORY in message:
        why = f"llama-server ran out of host memory on this request: {message}"
        return ChildRefused(status=503, kind="out_of_memory", message=why)
    if response.status == 500 and any(fault in message for fault in _CALLERS_FAULTS):
        return ChildRefused(status=400, kind="invalid_request_error", message=message)
    return ChildRefused(status=response.status, kind=error.type, message=message)


def _told(message: str) -> str:
    if len(message) <= MESSAGE_LENGTH:
        return message
    return f"{message[:MESSAGE_LENGTH]}… ({len(message)} characters in all)"


def event_error(event: bytes) -> str:
    """The message of an error event's payload, met in mid-stream."""
    try:
        return _told(_ERROR_REPLY.decode(event).error.message) or "it does not say why"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return event[:200].decode(errors="replace")
