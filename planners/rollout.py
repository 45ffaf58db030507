"""A new build of an engine beside the proven one: which model tries it, and what that says.

    tiny model decoded → on trial: one model runs on it ─ PROOF_ANSWERS answered → proven: all move
                                                        └ MOST_FAILURES of its own → rolled back
The old engine stays the one that everything is planned for until then. Pure.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from planners.backends import Engine
from planners.lessons.samples import LaunchSample
from planners.model import ModelId
from planners.view import InstanceState, Observed

PROOF_ANSWERS = 5  # of real requests: some seconds of a busy day
MOST_FAILURES = 2  # one may be another program's doing: memory taken, a process killed


class Newcomer(Struct, frozen=True):
    """An engine on trial."""

    engine: Engine
    old_engine_id: str
    """The proven one's, of the same backend."""
    since: float
    """UTC seconds at which it was switched in: what it did before does not count."""


class Proven(Struct, frozen=True):
    """It serves as the old one did."""

    reason: str


class RolledBack(Struct, frozen=True):
    """It fails where the old one did not."""

    reason: str


def dies_anyway(newcomer: Newcomer, launches: Iterable[LaunchSample]) -> frozenset[ModelId]:
    """Models that died on the old engine too: their ends say nothing of the new one."""
    return frozenset(
        one.model_id for one in _died(launches) if one.key.engine_id == newcomer.old_engine_id
    )


def judged(
    newcomer: Newcomer, launches: Iterable[LaunchSample], *, answers: int
) -> Proven | RolledBack | None:
    """What its launches and the requests it answered say; None while they say too little."""
    launches = tuple(launches)
    excused = dies_anyway(newcomer, launches)
    failures = [
        one
        for one in _died(launches)
        if one.key.engine_id == newcomer.engine.engine_id
        and one.at >= newcomer.since
        and one.model_id not in excused
    ]
    if len(failures) >= MOST_FAILURES:
        last = max(failures, key=lambda one: one.at)
        why = f"{len(failures)} launches of {last.model_id} failed that the old one had no part in"
        return RolledBack(f"{why}; the last one: {last.cause or 'it died'}")
    if answers >= PROOF_ANSWERS:
        return Proven(f"a real model answered {answers} requests on it")
    return None


def _died(launches: Iterable[LaunchSample]) -> Iterable[LaunchSample]:
    return (one for one in launches if one.outcome == "died")


def canary(
    newcomer: Newcomer, running: Iterable[Observed], *, moving: Collection[ModelId]
) -> Observed | None:
    """The instance that is to try it: of those that are ready on the old one the least busy.

    None while one tries it already, one moves, or none is ready.
    """
    running = tuple(running)
    if moving or any(seen.plan.engine_id == newcomer.engine.engine_id for seen in running):
        return None
    ready = [
        seen
        for seen in running
        if seen.state is InstanceState.READY and seen.plan.engine_id == newcomer.old_engine_id
    ]
    return min(ready, key=lambda seen: (seen.running, seen.model_id), default=None)
