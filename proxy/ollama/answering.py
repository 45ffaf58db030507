"""Turns a child's stream into Ollama's reply, as lines or as one object."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from proxy.child.refusals import refusal
from proxy.child.sse import EventReader
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.errors import StreamCut
from proxy.exchange import Exchange, Framing
from proxy.ollama.reading import ChatReading, CompletionReading, Piece, Reading
from proxy.ollama.replies import Ending, Writer
from proxy.ollama.requests import Common
from supervisor.leases.lease import Lease

ContextOf = Callable[[Lease, bytes], Awaitable[tuple[int, ...]]]
"""The token ids of the conversation so far, given the reply's text as a JSON string."""


class Answering(Struct, frozen=True):
    """How one request is answered; `hear` is called anew for each child that is asked."""

    door: Door
    exchange: Exchange
    common: Common
    writer: Writer
    is_chat_route: bool
    """Whether the child speaks /v1/chat/completions here, or /completion."""
    context_of: ContextOf | None = None

    async def hear(self, lease: Lease, response: UpstreamResponse) -> None:
        """Answers with the child's stream.

        Raises what the child refuses, and StreamCut.
        """
        if response.status != 200:
            raise await refusal(response, lease)
        reading = self._reading(response.socket_path)
        events = EventReader(response.socket_path)
        heard = _Heard(keeps=not self.common.stream or self.context_of is not None)

        def take(chunk: bytes) -> None:
            pieces: list[Piece] = []
            try:
                for event in events.feed(chunk):
                    if (piece := reading.read(event)) is not None:
                        pieces.append(piece)
            finally:  # what came before an error is told before it
                if pieces and self.common.stream:
                    self._write(b"".join([self._line(piece) for piece in pieces]))
            heard.add(pieces)

        await response.pour(take, self.exchange.to_caller)
        if reading.finish is None:
            raise StreamCut(response.socket_path)
        await self._end(lease, reading, heard)

    def _reading(self, socket_path: str) -> Reading:
        kind = ChatReading if self.is_chat_route else CompletionReading
        return kind(socket_path, top_logprobs=self.common.top_logprobs)

    def _line(self, piece: Piece) -> bytes:
        return (
            self.writer.piece(piece.text, thinking=piece.thinking, logprobs=piece.logprobs) + b"\n"
        )

    def _write(self, lines: bytes) -> None:
        if not self.exchange.begun:
            self.exchange.begin(Framing.NDJSON)
        self.exchange.put(lines)

    async def _end(self, lease: Lease, reading: Reading, heard: "_Heard") -> None:
        usage = reading.timings.usage()
        self.exchange.usage = usage
        self.door.service.report(lease, usage)
        context: tuple[int, ...] = ()
        if self.context_of is not None:
            # Of the child that wrote the end.
            context = await self.context_of(self.exchange.lease or lease, heard.text())
        ending = Ending(
            reason=reading.finish or "stop",
            timings=reading.timings,
            load_ns=round((lease.granted_at_s - self.exchange.started_s) * 1e9),
            started_s=self.exchange.started_s,
            context=context,
            n_dropped=self.exchange.n_dropped,
        )
        calls = reading.tool_calls()
        if not self.common.stream:
            reply = self.writer.last(
                ending,
                text=heard.text(),
                thinking=heard.thinking(),
                tool_calls=calls,
                logprobs=heard.logprobs(),
            )
            await self.exchange.reply(200, reply)
            return
        if not self.exchange.begun:
            self.exchange.begin(Framing.NDJSON)
        await self.exchange.finish(self.writer.last(ending, tool_calls=calls) + b"\n")


class _Heard:
    """The pieces of a reply, kept where they are needed at its end."""

    __slots__ = ("_keeps", "_pieces")

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._pieces: list[Piece] = []

    def add(self, pieces: list[Piece]) -> None:
        if self._keeps:
            self._pieces += pieces

    def text(self) -> bytes:
        """The whole text as a JSON string."""
        return b'"' + b"".join([piece.text[1:-1] for piece in self._pieces]) + b'"'

    def thinking(self) -> bytes:
        """The whole thinking as a JSON string; empty where there was none."""
        parts = [piece.thinking[1:-1] for piece in self._pieces if piece.thinking]
        return b'"' + b"".join(parts) + b'"' if parts else b""

    def logprobs(self) -> bytes:
        """All logprobs as one JSON array; empty where there are none."""
        parts = [piece.logprobs[1:-1] for piece in self._pieces if piece.logprobs]
        return b"[" + b",".join(parts) + b"]" if parts else b""
