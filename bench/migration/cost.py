"""What keeping a stream's past costs while nothing happens to it, by the processor's clock."""

from dataclasses import dataclass
from statistics import median
from time import process_time_ns

from bench.migration.account import verdict
from proxy.child.sse import WholeEvents
from proxy.continuity.delivered import Delivered

CHUNK = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" word"}}],'
    b'"created":1764586800,"id":"chatcmpl-BxoP0cRkNtaN2f0oHbUqRrvxjYzL9TtF",'
    b'"model":"SmolLM2-135M-Instruct.Q4_1","system_fingerprint":"b10434-7e4c0a9",'
    b'"object":"chat.completion.chunk"}\n\n'
)
"""One of llama-server's, as it comes."""
OLLAMA = (
    b'{"model":"smollm2","created_at":"2026-12-01T12:00:00.000000Z",'
    b'"message":{"role":"assistant","content":" word"},"done":false}\n'
)
"""The same as a caller of /api/chat gets it: the shortest of all dialects."""
CHUNKS = 2000  # of a reply
ROUNDS = 60
MOST_US, MOST_RATIO = 2.0, 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one reply's bookkeeping."""

    chunk_us: float
    """Median over replies, of a chunk."""
    held_ratio: float
    """Bytes of memory by bytes of the reply, at its end, in the dialect whose chunks are least."""


def measured(*, rounds: int = ROUNDS, chunks: int = CHUNKS) -> Cost:
    """Replies of equal chunks: as Lasting.pour passes them on, less the passing on alone."""
    kept, plain, held = [], [], 0
    for _ in range(rounds):
        kept_ns, held = _kept(chunks)
        kept.append(kept_ns)
        plain.append(_plain(chunks))
    chunk_us = (median(kept) - median(plain)) / chunks / 1000
    return Cost(chunk_us, held / (chunks * len(OLLAMA)))


def report(cost: Cost) -> str:
    """A line for people."""
    return (
        f"bookkeeping of a stream to which nothing happens: {cost.chunk_us:.3f} µs of a processor"
        f" per chunk, {cost.held_ratio:.2f} times the reply's bytes of memory for Ollama's callers"
    )


def bar(cost: Cost) -> str:
    """What was promised of it, and whether that holds, in a line."""
    holds = cost.chunk_us <= MOST_US and cost.held_ratio <= MOST_RATIO
    return (
        f"{verdict(holds)} cost: {cost.chunk_us:.2f} µs per chunk ({MOST_US:g} at"
        f" most), {cost.held_ratio:.2f} times the reply's bytes ({MOST_RATIO:g} at most)"
    )


def _kept(chunks: int) -> tuple[int, int]:
    """Nanoseconds, and bytes that are held in the end."""
    delivered = Delivered()
    whole, keep, take = WholeEvents("").take, delivered.add, _Taken().take

    def deliver(data: bytes) -> None:  # as in Lasting.pour
        if events := whole(data):
            keep(events)
            take(events)

    began_ns = process_time_ns()
    for _ in range(chunks):
        deliver(CHUNK)
    took_ns = process_time_ns() - began_ns
    return took_ns, delivered.held_bytes


def _plain(chunks: int) -> int:
    take = _Taken().take
    began_ns = process_time_ns()
    for _ in range(chunks):
        take(CHUNK)
    return process_time_ns() - began_ns


class _Taken:
    """Whoever what comes goes to."""

    def take(self, data: bytes) -> None:
        """A part of a reply."""
