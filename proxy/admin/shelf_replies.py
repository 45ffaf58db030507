"""Models that come and go, as the admin door answers for them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from planners.capabilities import capabilities
from planners.model import ServedModel
from proxy.admin.records import SIGN_OF_LIFE_S
from proxy.admin.shelf import PullLine, ShowReport
from proxy.ollama.modelfile import modelfile, parameters, template_source
from proxy.ollama.progress import line_of
from proxy.ollama.store_errors import StoreRefused, in_ollamas_words
from supervisor.leases.lease import Stopping
from supervisor.store.progress import Progress

PARTING_S = 0.5  # for the last line of a stream


def show_report(model: ServedModel, name: str) -> ShowReport:
    """One model; `name` as its asker writes it."""
    info = model.info
    return ShowReport(
        model=model.model_id,
        path=model.path,
        store=model.store,
        digest=model.shown_digest,
        architecture=info.architecture,
        n_params=info.n_params,
        quantization=info.quantization,
        n_ctx_train=info.n_ctx_train,
        n_embd=info.n_embd,
        size_bytes=model.size_bytes,
        modified_at=model.modified_at,
        capabilities=tuple(can.value for can in capabilities(model)),
        template_source=template_source(model),
        parameters=parameters(model),
        system=model.recipe.system,
        licenses=model.recipe.licenses,
        modelfile=modelfile(model, name),
    )


class PullStream(StreamingResponse):
    """A line of JSON for each step of a pull; who leaves ends it."""

    def __init__(self, work: AsyncGenerator[Progress, None], first: Progress) -> None:
        super().__init__(_lines(work, first), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:  # not raised again: uvicorn logs what ends its task
            last = {"type": "http.response.body", "body": _error(str(Stopping()))}
            with suppress(TimeoutError, RuntimeError):
                async with asyncio.timeout(PARTING_S):
                    await send(last)


async def pull_stream(work: AsyncGenerator[Progress, None]) -> PullStream:
    """The reply to a pull. Raises StoreRefused where it does not even begin."""
    with in_ollamas_words():
        first = await anext(work)
    return PullStream(work, first)


async def _lines(work: AsyncGenerator[Progress, None], first: Progress) -> AsyncIterator[bytes]:
    yield _line(first)
    try:
        with in_ollamas_words():
            async with aclosing(with_signs_of_life(work, first, every_s=SIGN_OF_LIFE_S)) as lines:
                async for progress in lines:
                    yield _line(progress)
    except StoreRefused as exc:
        yield _error(str(exc))


async def with_signs_of_life(
    work: AsyncGenerator[Progress, None], last: Progress, *, every_s: float
) -> AsyncGenerator[Progress, None]:
    """What follows the `last` line, and that one again whenever `every_s` pass without a next.

    A registry may take minutes to answer, and who asked must not take the daemon for dead.
    """
    async with aclosing(work):
        while True:
            step = asyncio.ensure_future(anext(work, None))
            try:
                while not (await asyncio.wait([step], timeout=every_s))[0]:
                    yield last
            finally:
                step.cancel()
                await asyncio.wait([step])
            if (line := step.result()) is None:
                return
            last = line
            yield last


def _line(progress: Progress) -> bytes:
    return msgspec.json.encode(line_of(progress)) + b"\n"


def _error(sentence: str) -> bytes:
    return msgspec.json.encode(PullLine(error=sentence)) + b"\n"
