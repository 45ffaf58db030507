"""What happened, as operators ask for it: a process's lines and the journal's events, also live."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TypeVar

from planners.model import ModelId
from proxy.admin.records import SIGN_OF_LIFE_S, EventReport, Followed, LogReport
from proxy.errors import UnknownModel
from supervisor.fleet import Fleet
from supervisor.records.follower import Follower
from supervisor.records.journal import Event
from supervisor.records.journal_file import JournalUnreadable
from supervisor.records.kept import Records

T = TypeVar("T")


class Happened:
    """Records, by the names that operators use."""

    def __init__(self, fleet: Fleet, records: Records) -> None:
        self._fleet, self._records = fleet, records

    async def log_lines(self, name: str, *, tail: int) -> LogReport:
        """The last `tail` lines of its process, or of the last one it had, be it on disk alone."""
        served = self._fleet.resolve(name)
        model_id = ModelId(name) if served is None else served.model_id
        lines = await self._records.child_logs.last(model_id, tail)
        if not lines and served is None:
            raise UnknownModel(name)
        return LogReport(model_id, lines or self._fleet.log_lines(model_id, tail))

    async def follow_log(self, name: str, *, tail: int) -> AsyncIterator[Followed]:
        """The same, and then each line as it is written."""
        report = await self.log_lines(name, tail=1)
        return self._log_followed(ModelId(report.model), tail=tail)

    async def _log_followed(self, model_id: ModelId, *, tail: int) -> AsyncIterator[Followed]:
        logs = self._records.child_logs
        with logs.following(model_id) as follower:
            for line in await logs.last(model_id, tail):
                yield Followed(line=line)
            async for skipped, now in _unread(follower):
                yield Followed(line=now, skipped=skipped)

    async def events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> Sequence[EventReport]:
        """The latest `limit` events of the last `since_s` seconds, oldest first."""
        model_id = await self.known(name)
        told = await self._records.journal.events(
            model_id=model_id, since=_since(since_s), limit=limit
        )
        return [_event_report(event) for event in told]

    async def follow_events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> AsyncIterator[Followed]:
        """The same, and then each event as it happens."""
        return self._events_followed(await self.known(name), since_s=since_s, limit=limit)

    async def _events_followed(
        self, model_id: ModelId | None, *, since_s: float | None, limit: int
    ) -> AsyncIterator[Followed]:
        journal = self._records.journal
        with journal.following(model_id) as follower:
            before: Sequence[Event] = ()
            with suppress(JournalUnreadable):  # what happens from now on is told all the same
                before = await journal.events(model_id=model_id, since=_since(since_s), limit=limit)
            for event in before:
                yield Followed(_event_report(event))
            async for skipped, now in _unread(follower):
                yield Followed(None if now is None else _event_report(now), skipped=skipped)

    async def known(self, name: str | None) -> ModelId | None:
        """The model that is meant, be it one of the past. Raises UnknownModel."""
        served = None if name is None else self._fleet.resolve(name)
        if name is None or served is not None:
            return None if served is None else served.model_id
        past = ModelId(name)
        if not await self._records.journal.events(model_id=past, since=0.0, limit=1):
            raise UnknownModel(name)
        return past


async def _unread(follower: Follower[T]) -> AsyncIterator[tuple[int, T | None]]:
    """What a follower is told, one by one; (0, None) where nothing happens for a while."""
    while (news := await follower.unread(within_s=SIGN_OF_LIFE_S)) is not None:
        skipped, items = news
        if not items:
            yield 0, None
        for item in items:
            yield skipped, item
            skipped = 0


def _since(since_s: float | None) -> float:
    return 0.0 if since_s is None else time.time() - since_s


def _event_report(event: Event) -> EventReport:
    return EventReport(
        at=event.at,
        kind=event.kind,
        model=event.model_id,
        instance=event.instance_id,
        reason=event.reason,
        facts=event.facts,
    )
