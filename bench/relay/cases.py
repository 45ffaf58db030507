"""What callers ask, and in which unit its cost is told."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
OLLAMA_CHAT = "/api/chat"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request by so many callers at once."""

    name: str
    path: str
    members: dict[str, object]
    callers: int
    per_event: bool
    """Its cost is told per streamed event, not per request."""
    n_chunks: int = 0
    """Of an assembled reply: how many its child sent."""
    limit: float | None = None
    """The most times nginx's cost that it may cost."""
    asks_daemon_only: bool = False

    def request(self, model: str) -> bytes:
        """The bytes on the wire."""
        return request(self.path, model, self.members)


def request(path: str, model: str, members: Mapping[str, object]) -> bytes:
    """A POST of a JSON body on the wire."""
    body = json.dumps({"model": model, **members}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def chat(n_chunks: int, *, pace_us: int, stream: bool = True) -> dict[str, object]:
    """A chat whose child sends so many chunks, so many microseconds apart."""
    return {
        "messages": [{"role": "user", "content": "Tell me."}],
        "stream": stream,
        "max_tokens": n_chunks,
        "seed": pace_us,
    }


def _ollama(n_chunks: int, *, pace_us: int) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": "Tell me."}],
        "options": {"num_predict": n_chunks, "seed": pace_us},
    }


CASES = (
    *(
        Case(f"request, {n} at once", EMBED, {"input": "x"}, n, per_event=False, limit=limit)
        for n, limit in ((1, 2.5), (16, 8.0), (64, 8.0))
    ),
    Case("chunk, 16 paced streams", CHAT, chat(100, pace_us=10_000), 16, True, limit=2.5),
    Case("chunk, 64 paced streams", CHAT, chat(50, pace_us=20_000), 64, True, limit=2.5),
    *(
        Case(f"chunk, {n} burst streams", CHAT, chat(200, pace_us=0), n, True, limit=limit)
        for n, limit in ((1, 1.5), (16, 1.5), (64, 2.5))
    ),
    Case(
        "chunk, assembled", CHAT, chat(200, pace_us=0, stream=False), 1, False,
        n_chunks=200, asks_daemon_only=True,
    ),
    Case(
        "chunk, 16 paced /api/chat", OLLAMA_CHAT, _ollama(100, pace_us=10_000), 16, True,
        asks_daemon_only=True,
    ),
)  # fmt: skip
