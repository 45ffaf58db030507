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

_END = DONE + b"\n\n"


async def relay_whole(exchange: Exchange, lease: Lease, response: UpstreamResponse) -> bytes:
    """Passes one JSON object, unchanged; whole, so that a child lost meanwhile can be made good."""
    if response.status != 200:
        raise await refusal(response, lease)
    body = response.at_once(limit_bytes=REPLY_BYTES)
    if body is None:
        body = await response.read(limit_bytes=REPLY_BYTES)
    content_type = response.header(b"content-type")
    if exchange.to_caller.is_slow:
        await exchange.reply(200, body, content_type=content_type)
    else:
        exchange.answer(200, body, content_type=content_type)
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
    relayed = _Relayed(exchange, response, shows_progress=shows_progress, n_prompts=n_prompts)
    await response.pour(relayed.take, exchange.to_caller)
    usage = relayed.usage()
    await exchange.finish(relayed.held)
    return usage


def put_until_error(events: bytes, put: Callable[[bytes], None]) -> None:
    """Has `put` called with whole events, where there are any. Raises ChildFailed at an error's."""
    error = b""
    if events.rfind(ERROR_HEAD) >= 0:  # found, or not, in a fifth of the time that `in` takes
        events, error = parted(events)
    if events:
        put(events)
    if error:
        raise ChildFailed(event_error(error))


class _Relayed:
    """What has been passed on of a stream of events."""

    __slots__ = (
        "_before", "_exchange", "_has_preludes", "_in_prelude", "_last", "_n_prompts",
        "_response", "_usages", "_whole", "held",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        *,
        shows_progress: bool,
        n_prompts: int,
    ) -> None:
        self._exchange, self._response, self._n_prompts = exchange, response, n_prompts
        self._whole = WholeEvents(response.socket_path)
        self.held = b""
        """The last of it, which goes out with the reply's end."""
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
        if self._response.has_ended and events.endswith(_END):
            self.held = events
        else:
            exchange.put(events)

    @property
    def _tail(self) -> bytes:
        return self._before[-4096:] + self._last[-8192:]

    def usage(self) -> Usage | None:
        """What the stream's end says that it took. Raises StreamCut for one without [DONE]."""
        tail = self._tail
        if not (self.held or tail.rstrip().endswith(DONE)):
            raise StreamCut(self._response.socket_path)
        return usage_sum(self._usages) if self._usages else usage_in(tail)


def _without_prelude(events: bytes) -> bytes:
    """What is left from the first event that is neither a ping nor the prompt's progress."""
    while events.startswith(b":") or IS_PROGRESS in events[: events.find(b"\n\n")]:
        events = events[events.find(b"\n\n") + 2 :]
    return events
