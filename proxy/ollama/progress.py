"""Work on the store as Ollama's clients draw it: lines of progress, or the last of them alone."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from proxy.exchange import Exchange, Framing
from proxy.ollama.store_errors import in_ollamas_words
from supervisor.store.progress import Progress


class Line(msgspec.Struct, omit_defaults=True):
    """One line; numbers that are 0 are left out, as Go's omitempty does."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


def line_of(progress: Progress) -> Line:
    """What clients read."""
    return Line(progress.status, progress.digest, progress.total_bytes, progress.completed_bytes)


async def tell(exchange: Exchange, work: AsyncGenerator[Progress, None], *, streams: bool) -> None:
    """Answers with the work's progress; it ends where the caller leaves. Raises StoreRefused."""
    last = Line("success")
    with in_ollamas_words(), exchange.attended():
        async with aclosing(work) as lines:
            async for progress in lines:
                last = line_of(progress)
                if streams:
                    exchange.begin(Framing.NDJSON)
                    await exchange.write(msgspec.json.encode(last) + b"\n")
    if streams:
        await exchange.finish()
    else:
        await exchange.reply_json(last)
