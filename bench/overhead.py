"""What the daemon adds to a llama-server: time to first byte, CPU per request and per chunk.

A is the daemon; B is its own child, asked directly over its socket: the same process, the same
slot, the same prompt. Each round asks A, B and B again in a seeded order, so that a drift hits all
alike; B against B (the column A/A) says how much of a difference is noise.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import clock_gettime_ns

from msgspec import Struct
from msgspec.structs import replace

from bench.wire import Exchange, Wire

_SCHEDULED = 2  # linux/posix-timers.h: CPUCLOCK_SCHED, of a process
PROMPT = [{"role": "user", "content": "Count from one to fifty in words."}]


@dataclass(slots=True)
class Samples:
    """What one side showed, in seconds."""

    first_byte_s: list[float] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    cpu_request_s: list[float] = field(default_factory=list)
    cpu_chunk_s: list[float] = field(default_factory=list)


class Side(Struct, frozen=True):
    """One way to the model, and the processes whose CPU it costs."""

    wire: Wire
    pids: tuple[int, ...]
    samples: Samples


def cpu_s(pids: tuple[int, ...]) -> float:
    """CPU seconds that the processes have used, with all threads they have or had."""
    return sum(map(_cpu_ns, pids)) / 1e9


def _cpu_ns(pid: int) -> int:
    """As clock_getcpuclockid(3) does it: in nanoseconds, and threads that ended are not lost."""
    return clock_gettime_ns((~pid << 3) | _SCHEDULED)


def body(model: str, *, max_tokens: int, stream: bool) -> bytes:
    """A chat request that every side answers alike."""
    told = {"model": model, "messages": PROMPT, "max_tokens": max_tokens, "stream": stream}
    return json.dumps({**told, "temperature": 0, "seed": 1, "id_slot": 0}).encode()


def round_of(side: Side, model: str, *, n_tokens: int) -> None:
    """One short request and one stream on one side, added to its samples."""
    short, spent_s = _clocked(side, lambda: _chat(side, model, max_tokens=1, stream=False))
    side.samples.first_byte_s.append(short.first_byte_s)
    side.samples.cpu_request_s.append(spent_s)
    streamed, spent_s = _clocked(side, lambda: _chat(side, model, max_tokens=n_tokens, stream=True))
    n_chunks = streamed.body.count(b"data: {")
    side.samples.chunk_s.append(streamed.total_s / n_chunks)
    side.samples.cpu_chunk_s.append(spent_s / n_chunks)


def _chat(side: Side, model: str, *, max_tokens: int, stream: bool) -> Exchange:
    return side.wire.post("/v1/chat/completions", body(model, max_tokens=max_tokens, stream=stream))


def _clocked(side: Side, work: Callable[[], Exchange]) -> tuple[Exchange, float]:
    before_s = cpu_s(side.pids)
    exchange = work()
    return exchange, cpu_s(side.pids) - before_s


def interleaved(
    daemon: Side, direct: Side, again: Side, *, model: str, rounds: int, n_tokens: int, seed: int
) -> None:
    """Rounds in a seeded order, each side once per round."""
    order = random.Random(seed)
    for side in (daemon, direct, again):  # warm: connections, prompt cache
        round_of(replace(side, samples=Samples()), model, n_tokens=n_tokens)
    for _ in range(rounds):
        turn = [daemon, direct, again]
        order.shuffle(turn)
        for side in turn:
            round_of(side, model, n_tokens=n_tokens)


def report(daemon: Samples, direct: Samples, again: Samples) -> str:
    """The table: medians of both, what the daemon adds, the ratio, and the ratio of B to B."""
    rows = [
        ("time to first byte, 1-token chat", "first_byte_s", 1e3, "ms"),
        ("time per streamed chunk", "chunk_s", 1e3, "ms"),
        ("CPU per request, all processes", "cpu_request_s", 1e6, "µs"),
        ("CPU per streamed chunk, all processes", "cpu_chunk_s", 1e6, "µs"),
    ]
    lines = [f"{'median of':40}{'direct':>14}{'daemon':>14}{'added':>14}{'ratio':>8}{'A/A':>8}"]
    for title, name, scale, unit in rows:
        a, b, b_again = (median(getattr(side, name)) for side in (daemon, direct, again))
        cells = [f"{value * scale:.3f} {unit}" for value in (b, a, a - b)]
        ratios = f"{a / b:8.3f}{b_again / b:8.3f}"
        lines.append(f"{title:40}" + "".join(f"{cell:>14}" for cell in cells) + ratios)
    return "\n".join(lines)
