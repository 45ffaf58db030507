"""A stream that outlives its child: who reads it reads one, whoever wrote which part of it.

    child ─ lost ─ another one's lease ─ way_on ─ sent ─ spliced → the rest, or lost again
                   │                   └── came out otherwise, or its text in other tokens, unseen:
                   │                       way_on, once more
                   └ nobody is to follow, or no way ─ the loss, raised
What was read here counts as delivered. It knows neither dialects nor models.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from time import monotonic
from typing import Protocol

import msgspec

from proxy.child.connection import Reader, Take
from proxy.child.sse import EventReader, WholeEvents
from proxy.child.upstream import UpstreamResponse
from proxy.continuity.continuation import (
    Asked,
    Continue,
    Finish,
    Impossible,
    Replay,
    Resend,
    Way,
    asked_by,
    way_on,
    written,
)
from proxy.continuity.delivered import Delivered, Kind, Told, Unreadable, told_by
from proxy.continuity.seam import finding, one_token
from proxy.continuity.splice import Diverged, Splice, ending
from proxy.continuity.tokens import Piece, n_tokens
from proxy.errors import UpstreamGone

ONE_AGAIN = 1  # the last token of a prompt is computed anew whatever is cached


class Resumption(msgspec.Struct, frozen=True):
    """How a reply went on after its child was lost."""

    way: str
    """`resend`, `replay`, `continue` or `finish`."""
    pause_s: float
    """From the loss to the first part that the caller did not have yet."""
    n_computed: int
    """Tokens that had been computed before, and were again."""


class Successor(Protocol):
    """The child that comes after the one that was lost, as far as a stream needs it."""

    @property
    def body(self) -> bytes:
        """The request as the lost child got it."""

    @property
    def is_due(self) -> bool:
        """Whether another child may be asked at all."""

    async def take(self) -> bool:
        """Waits for it. Whether it computes as the lost one did. Raises LeaseError."""

    @property
    def is_restored(self) -> bool:
        """Whether the cache of what was written came along."""

    @property
    def restored_ids(self) -> tuple[int, ...]:
        """The tokens of that cache, where they are known."""

    async def pieces(self, text: str) -> list[Piece]:
        """The tokens that it makes of a text. Raises UpstreamError, what it refuses."""

    async def text(self, ids: Sequence[int]) -> str:
        """What tokens stand for. Raises the same."""

    async def send(self, extra: bytes) -> UpstreamResponse:
        """Its reply to the same request with these members too. Raises the same."""

    def resumed(self, resumption: Resumption) -> None:
        """The reply went on."""

    def lost(self, loss: UpstreamGone, why: str) -> UpstreamGone:
        """The loss, with what ended the child and why the reply cannot go on."""


class _NoWay(Exception):
    """A reply cannot go on, and why."""


class _Options(msgspec.Struct):
    include_usage: bool = False


_OPTIONS = msgspec.json.Decoder(_Options | None)


class Lasting(UpstreamResponse):
    """A child's stream, and after the child's loss what `successor` writes of it."""

    __slots__ = ("_delivered", "_kind", "_lost_s", "_successor")

    def __init__(self, first: UpstreamResponse, kind: Kind, successor: Successor) -> None:
        super().__init__(first._connection)
        self._kind, self._successor = kind, successor
        self._delivered = Delivered()
        self._lost_s = 0.0

    async def pour(self, take: Take, reader: Reader) -> None:
        """Has `take` called with whole events as they come, until the end of the last child's.

        Raises UpstreamError, LeaseError, what a child refuses, and what `take` raises.
        """
        whole, keep = WholeEvents(self.socket_path).take, self._delivered.add

        def deliver(data: bytes) -> None:
            if events := whole(data):
                keep(events)
                take(events)

        try:
            await self._connection.pour(deliver, reader)
            return
        except UpstreamGone as exc:
            loss = exc
        while self._delivered.is_whole and self._successor.is_due:
            self._lost_s = monotonic()
            try:
                async for events in self._rest():
                    if reader.is_slow:
                        await reader.drained()
                    self._delivered.add(events)
                    take(events)
                return
            except UpstreamGone as exc:
                loss = exc
            except (_NoWay, Diverged, Unreadable) as exc:
                raise self._successor.lost(loss, str(exc)) from exc
        raise loss

    async def _rest(self) -> AsyncIterator[bytes]:
        told = told_by(self._delivered, self._kind)
        if told.is_done and not told.kind.is_raw:  # a raw one ends with each of its prompts
            return
        asked = asked_by(self._successor.body)
        if asked is None:
            raise _NoWay("its request is of another shape")
        is_alike = await self._successor.take()
        ids = await self._ids(asked, told)
        n_sent = await self._sent_tokens(asked, told, ids)
        ways = self._ways(asked, told, ids, n_sent, is_alike=is_alike)
        for way, due, is_last in ways:
            has_more = False
            try:
                async for events in self._by_a_way(way, asked, told, n_sent, due_tokens=due):
                    has_more = True
                    yield events
                return
            except Diverged:
                # As a prompt that was found cached rounds otherwise. The caller saw none of it.
                if has_more or is_last:
                    raise

    def _ways(
        self, asked: Asked, told: Told, ids: tuple[int, ...], n_sent: int, *, is_alike: bool
    ) -> Iterator[tuple[Way, int | None, bool]]:
        """Ways to try, one after the other: tokens due on each, and whether it is the last.

        Raises _NoWay where the last one would come to the same again.
        """
        *attempts, last = _attempts(is_alike=is_alike, is_restored=self._successor.is_restored)
        has_replayed = False
        for keeps_math, is_restored in (*attempts, last):
            is_last = (keeps_math, is_restored) == last
            way = way_on(
                asked,
                told,
                keeps_math=keeps_math,
                is_restored=is_restored,
                sent_tokens=n_sent,
                ids=ids if is_restored else (),
            )
            if isinstance(way, Replay) and has_replayed:
                if is_last:
                    raise _NoWay(way.otherwise)
                continue
            has_replayed = has_replayed or isinstance(way, Replay)
            due = len(ids) if keeps_math and is_restored and isinstance(way, Continue) else None
            yield way, due, is_last

    async def _ids(self, asked: Asked, told: Told) -> tuple[int, ...]:
        """The prompt and what was delivered as the slot has them; () where it does not tell."""
        slot, text = self._successor.restored_ids, written(asked, told)
        if not slot or told.prompt is None or not text:
            return ()
        steps = finding(slot, n_prompt=told.prompt.total, text=text)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(await self._successor.text(wanted))
        except StopIteration as done:
            found: tuple[int, ...] | str | None = done.value
        if not isinstance(found, str):
            return found or ()
        last = one_token(await self._successor.pieces(found), found)
        return () if last is None else (*slot, last)

    async def _sent_tokens(self, asked: Asked, told: Told, ids: tuple[int, ...]) -> int:
        if ids and told.prompt is not None:
            return len(ids) - told.prompt.total
        if told.predicted_n is not None:
            return told.predicted_n
        text = written(asked, told)
        return n_tokens(await self._successor.pieces(text), text) if text else 0

    async def _by_a_way(
        self, way: Way, asked: Asked, told: Told, n_sent: int, *, due_tokens: int | None
    ) -> AsyncIterator[bytes]:
        match way:
            case Impossible():
                raise _NoWay(way.reason)
            case Finish():
                self._tell("finish", 0)
                wants_usage = _wants_usage(asked)
                yield _framed(ending(way, told, prompt=told.prompt, wants_usage=wants_usage))
            case Resend() | Replay() | Continue():
                try:
                    async for events in self._spliced(way, told, n_sent, due_tokens=due_tokens):
                        yield events
                except Diverged as exc:
                    if isinstance(way, Replay) and way.otherwise:
                        raise _NoWay(way.otherwise) from exc
                    raise

    async def _spliced(
        self, way: Resend | Replay | Continue, told: Told, n_sent: int, *, due_tokens: int | None
    ) -> AsyncIterator[bytes]:
        """`due_tokens`: what the child is to read, nearly all of it cached; None for whatever."""
        if due_tokens == 0:
            raise Diverged("the slot does not tell in which tokens the text was written")
        splice = Splice(way, told, prompt=told.prompt)
        response = await self._successor.send(b"" if isinstance(way, Resend) else way.extra)
        reader = EventReader(response.socket_path)
        has_told = False
        async for data in response.chunks():
            taken = [t for event in reader.feed(data) if (t := splice.take(event)) is not None]
            if due_tokens is not None and not has_told:
                _check_seam(splice, due_tokens)
            if not taken:
                continue
            if not has_told:
                has_told = True
                n_read = (splice.prompt_tokens or 0) - (splice.cached_tokens or 0)
                n_again = n_sent if isinstance(way, Replay) else 0
                self._tell(type(way).__name__.lower(), n_read + n_again)
            yield _framed(taken)

    def _tell(self, way: str, n_computed: int) -> None:
        pause_s = monotonic() - self._lost_s
        self._successor.resumed(Resumption(way, pause_s, n_computed))


def _attempts(*, is_alike: bool, is_restored: bool) -> tuple[tuple[bool, bool], ...]:
    """What is tried in turn: whether as on the same math, and whether from the cache that is there.

    What its text alone does not make again token by token is written again instead.
    """
    wanted = ((True, is_restored), (True, False)) if is_alike else ()
    return tuple(dict.fromkeys((*wanted, (False, is_restored))))


def _check_seam(splice: Splice, due_tokens: int) -> None:
    """Raises Diverged where what was written reads as other tokens than it was written in.

    Then there are fewer or more of them, or the cache ends where they part.
    """
    total, cached = splice.prompt_tokens, splice.cached_tokens
    if total is None or cached is None:
        return
    if total != due_tokens:
        raise Diverged(f"the text reads as {total} tokens, and was written in {due_tokens}")
    if total - cached > ONE_AGAIN:
        raise Diverged(f"{total - cached} tokens of the text are others than were written")


def _framed(events: list[bytes]) -> bytes:
    return b"".join([b"data: %b\n\n" % event for event in events])


def _wants_usage(asked: Asked) -> bool:
    try:
        options = _OPTIONS.decode(asked.stream_options)
    except msgspec.DecodeError:
        return False
    return options is not None and options.include_usage
