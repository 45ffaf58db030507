"""Several choices of one request: its child is asked for each in turn, in the slot of one lease.

    n = 3 ─ lease ─ ask → choice 0 ─ ask, seed + 1 → choice 1 ─ ask, seed + 2 → choice 2
The prompt is read once, since it stays in the slot. Callers see one reply: one id, one usage.
Where the child is lost, or moves, the next one goes on with the choice that was being told, and is
asked for those after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from proxy.child.chunks import NULL
from proxy.child.refusals import event_error, refusal
from proxy.child.sse import DONE, EventReader
from proxy.child.timings import Timings, sum_of
from proxy.child.upstream import UpstreamRequest, UpstreamResponse
from proxy.door import Door
from proxy.errors import ChildFailed, StreamCut
from proxy.exchange import Exchange, Framing
from proxy.forward import REPLY_BYTES, Order, Turn, pinned, understood
from proxy.openai.assemble import assembled
from supervisor.leases.lease import Lease

MAX_CHOICES = 8
"""Of one request: it holds its slot for as long as all of them take."""
RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED; a caller's -1 is the same

_JSON_HEADERS = ((b"Content-Type", b"application/json"),)
_ALONE = b'"n":1,"n_cmpl":1'
_HEAD = ("id", "created", "model", "system_fingerprint", "object")
_Members = dict[str, msgspec.Raw]


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _Cached = msgspec.field(default_factory=_Cached)


class _Part(msgspec.Struct):
    """A whole reply with one choice, or a chunk of one."""

    choices: list[_Members] = []
    usage: _Usage | None = None
    timings: Timings | None = None


_PART = msgspec.json.Decoder(_Part)
_MEMBERS = msgspec.json.Decoder(_Members)


@dataclass(frozen=True, slots=True)
class Choices:
    """What is asked for, and of whom; `hear_…` may be called again, and starts anew."""

    door: Door
    exchange: Exchange
    order: Order
    n: int
    seed: int | None = None
    """Of the first choice; each further one has the next. None is the child's own chance."""

    @property
    def first(self) -> Order:
        """What asks for the first choice."""
        return self._order(0)

    async def hear_stream(
        self, turn: Turn, response: UpstreamResponse, *, shows_progress: bool, shows_usage: bool
    ) -> None:
        """Tells one choice after another as they come. Raises as relay_stream does."""
        told = _Told()
        await self._relay(told, 0, turn.lease, response, shows_progress)
        for index in range(1, self.n):
            response = await turn.further(self._order(index))
            await self._relay(told, index, turn.lease, response, shows_progress)
        self._report(turn.lease, told.parts.values())
        usage = [told.usage()] if shows_usage else []
        await self.exchange.finish(b"".join([*usage, b"data: %b\n\n" % DONE]))

    async def hear_whole(
        self, lease: Lease, response: UpstreamResponse, *, chat: bool, assembles: bool
    ) -> None:
        """Tells all of them at once. Raises as relay_whole does."""
        replies = [await _whole(lease, response, chat=chat, assembles=assembles)]
        for index in range(1, self.n):
            async with self._sent(index, lease) as response:
                replies.append(await _whole(lease, response, chat=chat, assembles=assembles))
        parts = [understood(reply, _PART, socket_path=lease.socket_path) for reply in replies]
        choices = [
            {**choice, "index": index}
            for index, part in enumerate(parts)
            for choice in part.choices
        ]
        whole = {**_MEMBERS.decode(replies[0]), "choices": choices, **_took(parts)}
        await self.exchange.reply(200, msgspec.json.encode(whole))
        self._report(lease, parts)

    def _order(self, index: int) -> Order:
        extra = b",".join(filter(None, (self.order.extra, _ALONE, self._seed(index))))
        return replace(self.order, extra=extra)

    def _seed(self, index: int) -> bytes:
        if self.seed is None or index == 0:
            return b""
        return b'"seed":%d' % ((self.seed + index) % RANDOM_SEED)

    def _sent(self, index: int, lease: Lease) -> UpstreamRequest:
        return self.door.pools.request(
            lease.socket_path,
            method=b"POST",
            target=self.order.target,
            headers=(*_JSON_HEADERS, *self.exchange.passed_on),
            body=pinned(self._order(index), lease),
        )

    async def _relay(
        self,
        told: "_Told",
        index: int,
        lease: Lease,
        response: UpstreamResponse,
        shows_progress: bool,
    ) -> None:
        """Passes one choice on, under its number."""
        if response.status != 200:
            raise await refusal(response, lease)
        events, is_done = EventReader(response.socket_path), False

        def take(arrived: bytes) -> None:
            nonlocal is_done
            said: list[bytes] = []
            try:
                for event in events.feed(arrived):
                    is_done = is_done or event == DONE
                    if event != DONE:
                        said.append(told.chunk(event, index, shows_progress, response.socket_path))
            finally:  # what came before an error is told before it
                self._put(b"".join(said))

        await response.pour(take, self.exchange.to_caller)
        if not is_done:
            raise StreamCut(response.socket_path)

    def _put(self, events: bytes) -> None:
        if events:
            self.exchange.begin(Framing.SSE)
            self.exchange.put(events)

    def _report(self, lease: Lease, parts: Iterable[_Part]) -> None:
        timings = [part.timings for part in parts if part.timings is not None]
        if timings:
            self.exchange.usage = usage = sum_of(timings).usage()
            self.door.service.report(lease, usage)


@dataclass(slots=True)
class _Told:
    """A stream of several choices so far."""

    parts: dict[int, _Part] = field(default_factory=dict)
    """The last of each choice that says what it took."""
    _head: _Members = field(default_factory=dict)
    """What all chunks have alike: that of the first."""

    def chunk(self, event: bytes, index: int, shows_progress: bool, socket_path: str) -> bytes:
        """A chunk as the caller is told it; empty where it is nothing to tell.

        Raises ChildFailed for an error, UpstreamBroken for what is no chunk.
        """
        members = understood(event, _MEMBERS, socket_path=socket_path)
        if "error" in members:
            raise ChildFailed(event_error(event))
        part = understood(event, _PART, socket_path=socket_path)
        self._head = self._head or {key: members.get(key, NULL) for key in _HEAD}
        if part.usage is not None or part.timings is not None:
            self.parts[index] = part
        if not part.choices or ("prompt_progress" in members and not shows_progress):
            return b""
        members.pop("usage", None)
        choices = [{**choice, "index": index} for choice in part.choices]
        return _event({**members, **self._head, "choices": choices})

    def usage(self) -> bytes:
        """The chunk that tells what all of them took."""
        return _event({**self._head, "choices": [], **_took(list(self.parts.values()))})


async def _whole(lease: Lease, response: UpstreamResponse, *, chat: bool, assembles: bool) -> bytes:
    """The reply with one choice."""
    if assembles:
        return (await assembled(lease, response, chat=chat)).reply()
    if response.status != 200:
        raise await refusal(response, lease)
    return await response.read(limit_bytes=REPLY_BYTES)


def _took(parts: Sequence[_Part]) -> dict[str, object]:
    """Usage, in which the prompt counts once, as OpenAI has it; and timings of all the work."""
    usages = [part.usage for part in parts if part.usage is not None]
    timings = [part.timings for part in parts if part.timings is not None]
    took: dict[str, object] = {}
    if usages:
        n_prompt = usages[0].prompt_tokens
        n_decoded = sum(usage.completion_tokens for usage in usages)
        details = usages[0].prompt_tokens_details
        took["usage"] = _Usage(n_decoded, n_prompt, n_prompt + n_decoded, details)
    if timings:
        took["timings"] = sum_of(timings)
    return took


def _event(told: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(told)
