"""What one llama-server child says: its state lines on stdout, its health over its socket.

The state lines are llama.cpp's router protocol (tools/server/server-models.cpp, seen in b10434):
`cmd_child_to_router:state:{"state": "loading" | "ready" | "sleeping", "payload": …}`. They need
LLAMA_SERVER_ROUTER_PORT in the environment; without them /health alone decides.
"""

import errno
from collections.abc import Mapping

import httpx
import msgspec

from planners.instances.progress import Steps

_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What a connection fails of for lack of something of our own; the other side had no part in it."""
_STATE_LINE = "cmd_child_to_router:state:"
EXIT_LINE = b"cmd_router_to_child:exit\n"
"""Ends a loaded child that speaks the protocol. SIGTERM would not: it then waits for its stdin."""


class ChildState(msgspec.Struct, frozen=True):
    """One state line."""

    state: str
    progress: float | None
    """0 to 1 while a stage of the load goes on."""


class _Payload(msgspec.Struct):
    value: float | None = None


class _Line(msgspec.Struct):
    state: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


def parse_state(line: str) -> ChildState | None:
    """The state a stdout line tells, or None when it tells none."""
    if not line.startswith(_STATE_LINE):
        return None
    try:
        told = msgspec.json.decode(line[len(_STATE_LINE) :], type=_Line)
        payload = (
            msgspec.json.decode(told.payload, type=_Payload | None)
            if told.state == "loading"
            else None
        )
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return ChildState(told.state, payload.value if payload else None)


def client_of(socket_path: str, *, timeout_s: float | None) -> httpx.AsyncClient:
    """An HTTP client, to be entered, of the child behind a socket."""
    # verify=False: no TLS on a Unix socket, and loading certificates outlasts a small decode.
    transport = httpx.AsyncHTTPTransport(uds=socket_path, verify=False)
    return httpx.AsyncClient(
        transport=transport, base_url="http://child", timeout=timeout_s, trust_env=False
    )


class SlotsTold(msgspec.Struct, frozen=True):
    """What /slots says of the work under way."""

    busy: int
    steps: Steps


class _NextToken(msgspec.Struct):
    n_decoded: int = 0


class _Slot(msgspec.Struct):
    id: int = -1
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    next_token: list[_NextToken] | _NextToken = msgspec.field(default_factory=list)


_SLOTS = msgspec.json.Decoder(list[_Slot])


async def slots_told(client: httpx.AsyncClient) -> SlotsTold | None:
    """What the slots count; None where /slots is not answered in time, or not understood.

    It goes through the child's task queue, so it waits for the decode step that runs.
    """
    try:
        reply = await client.get("/slots")
        slots = _SLOTS.decode(reply.content)
    except (httpx.TransportError, msgspec.DecodeError):
        return None
    return SlotsTold(sum(slot.is_processing for slot in slots), tuple(map(_steps, slots)))


async def slots_seen(
    client: httpx.AsyncClient, *, restored: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    """(slot, tokens in its cache), of all slots; () where that is not answered, nor understood.

    `restored`: tokens that were read from a file, by slot; of those the child tells nothing until
    the slot has served.
    """
    try:
        reply = await client.get("/slots")
        slots = _SLOTS.decode(reply.content)
    except (httpx.TransportError, msgspec.DecodeError):
        return ()
    return tuple(
        (slot.id, slot.n_prompt_tokens or restored.get(slot.id, 0))
        for slot in slots
        if slot.id >= 0
    )


def _steps(slot: _Slot) -> tuple[int, ...]:
    following = slot.next_token if isinstance(slot.next_token, list) else [slot.next_token]
    decoded = sum(token.n_decoded for token in following)
    return slot.id_task, slot.n_prompt_tokens_processed, decoded


async def is_healthy(client: httpx.AsyncClient) -> bool:
    """True when the child says that its model is loaded."""
    try:
        async with client.stream("GET", "/health") as reply:  # whatever its length, not its body
            return reply.status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def answers(client: httpx.AsyncClient) -> bool:
    """True when the child answers /health, whatever it says; what we lack is not its silence."""
    try:
        async with client.stream("GET", "/health"):
            return True
    except httpx.TransportError as exc:
        return _is_our_lack(exc)


def _is_our_lack(exc: BaseException | None) -> bool:
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in _OURS:
            return True
        exc = exc.__cause__ or exc.__context__
    return False
