"""Passes a child's reply on as it is: whole, or event by event as it comes."""

from collections.abc import Callable

from planners.lessons.usage import Usage
from proxy.child.refusals import event_error, refusal
from proxy.child.sse import DONE, ERROR_HEAD, IS_PROGRESS, WholeEvents, parted, without_progress
from proxy.child.timings import usage_in, usage_sum, usages_in
from proxy.child.upstream import UpstreamResponse
from proxy.errors import ChildFailed, StreamCut
from proxy.exchange import Exchange, Framing
from proxy.forward import REPLY_BYTES
from supervisor.leases.lease import Lease


async def relay_whole(exchange: Exchange, lease: Lease, response: UpstreamResponse) -> bytes:
    """Passes one JSON object, unchanged; whole, so that a child lost meanwhile can be made good."""
    if response.status != 200:
        raise await refusal(response, lease)
    body = await response.read(limit_bytes=REPLY_BYTES)
    await exchange.reply(200, body, content_type=response.header(b"content-type"))
    return body


async def relay_stream(
    exchange: Exchange,
    lease: Lease,
    response: UpstreamResponse,
    *,
    shows_progress: bool,
    n_prompts: int = 1,
) -> Usage | None:
    """Passes a stream of events, unchanged and as it comes; gives what its end says it took.

    Progress events are left out unless the caller asked for them. Raises ChildFailed for an error,
    after what came before it, StreamCut for a stream that ends with neither [DONE] nor an error.
    """
    if response.status != 200:
        raise await refusal(response, lease)
    relayed = _Relayed(
        exchange, response.socket_path, shows_progress=shows_progress, n_prompts=n_prompts
    )
    await response.pour(relayed.take, exchange.to_caller)
    relayed.check_end()
    await exchange.finish()
    return relayed.usage()


def put_until_error(events: bytes, put: Callable[[bytes], None]) -> None:
    """Has `put` called with whole events, where there are any. Raises ChildFailed at an error's."""
    error = b""
    if ERROR_HEAD in events:
        events, error = parted(events)
    if events:
        put(events)
    if error:
        raise ChildFailed(event_error(error))


class _Relayed:
    """What has been passed on of a stream of events."""

    __slots__ = (
        "_before", "_exchange", "_has_preludes", "_in_prelude", "_last", "_n_prompts",
        "_socket_path", "_usages", "_whole",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, socket_path: str, *, shows_progress: bool, n_prompts: int
    ) -> None:
        self._exchange, self._socket_path, self._n_prompts = exchange, socket_path, n_prompts
        self._whole = WholeEvents(socket_path)
        self._in_prelude = not shows_progress
        self._has_preludes = n_prompts > 1 and self._in_prelude
        self._before = self._last = b""
        self._usages: list[Usage] = []

    def take(self, arrived: bytes) -> None:
        """Passes on what a piece of the stream completes. Raises ChildFailed, UpstreamBroken."""
        events = self._whole.take(arrived)
        if self._has_preludes:
            events = without_progress(events)
        elif self._in_prelude:
            events = _without_prelude(events)
        put_until_error(events, self._put)

    def _put(self, events: bytes) -> None:
        exchange = self._exchange
        if not exchange.delivered:
            self._in_prelude = False
            exchange.begin(Framing.SSE)
        self._before, self._last = self._last, events
        if self._n_prompts > 1:
            self._usages += usages_in(events)
        exchange.put(events)

    @property
    def _tail(self) -> bytes:
        return self._before[-4096:] + self._last[-8192:]

    def check_end(self) -> None:
        """Raises StreamCut for a stream that ended without [DONE]."""
        if not self._tail.rstrip().endswith(DONE):
            raise StreamCut(self._socket_path)

    def usage(self) -> Usage | None:
        """What the stream's end says that it took."""
        return usage_sum(self._usages) if self._usages else usage_in(self._tail)


def _without_prelude(events: bytes) -> bytes:
    """What is left from the first event that is neither a ping nor the prompt's progress."""
    while events.startswith(b":") or IS_PROGRESS in events[: events.find(b"\n\n")]:
        events = events[events.find(b"\n\n") + 2 :]
    return events
