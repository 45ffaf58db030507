"""What one llama-server child says: its state lines on stdout, its health over its socket.

The state lines are llama.cpp's router protocol (tools/server/server-models.cpp, seen in b10434):
`cmd_child_to_router:state:{"state": "loading" | "ready" | "sleeping", "payload": …}`. They need
LLAMA_SERVER_ROUTER_PORT in the environment; without them /health alone decides.
"""

from dataclasses import dataclass

import httpx
import msgspec

_STATE_LINE = "cmd_child_to_router:state:"
EXIT_LINE = b"cmd_router_to_child:exit\n"
"""Ends a loaded child that speaks the protocol. SIGTERM would not: it then waits for its stdin."""
HEALTH_S = 2.0  # /health is answered by the HTTP thread alone, within a millisecond


@dataclass(frozen=True, slots=True)
class ChildState:
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


async def is_healthy(socket_path: str) -> bool:
    """True when the child behind the socket says that its model is loaded."""
    transport = httpx.AsyncHTTPTransport(uds=socket_path)
    try:
        async with httpx.AsyncClient(transport=transport, timeout=HEALTH_S) as client:
            reply = await client.get("http://child/health")
    except httpx.TransportError:
        return False
    return reply.status_code == httpx.codes.OK
