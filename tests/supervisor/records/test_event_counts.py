"""Counts of what a fleet does, with the fake engine."""

import os
import signal

from planners.view import InstanceState
from supervisor.records.event_counts import EventCounts
from tests.fakes.fleet_world import TINY, MakeWorld


async def test_loads_unloads_and_restarts_are_counted_with_their_reasons(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        counts = world.journal.counts
        await world.served_by()
        os.kill(world.pid(), signal.SIGKILL)
        await world.until(lambda: world.state() is not InstanceState.READY)
        await world.served_by()
        world.fleet.unload(TINY)
        await world.until_state(None)

        assert counts.load_s[TINY].count == 2
        ((model, reason),) = counts.restarts
        assert (model, reason.removesuffix("_by_process")) == (TINY, "killed")
        assert dict(counts.evictions) == {(TINY, "asked"): 1}


async def test_an_unused_model_leaves_for_that_reason(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by(keep_alive_s=0.0)
        await world.until_state(None)

        assert dict(world.journal.counts.evictions) == {(TINY, "unused"): 1}


def test_replies_that_outlived_their_process_are_counted_by_their_way() -> None:
    counts = EventCounts()

    for way in ("replay", "continue", "replay"):
        counts.take("stream.resumed", TINY, {"way": way, "pause_s": 0.5})

    assert dict(counts.resumptions) == {(TINY, "replay"): 2, (TINY, "continue"): 1}


def test_moves_are_counted_by_how_they_went() -> None:
    counts = EventCounts()

    counts.take("migration.done", TINY, {"order": "make-before-break", "streams": 2})
    counts.take("migration.failed", TINY, {})

    assert dict(counts.migrations) == {(TINY, "make-before-break"): 1, (TINY, "failed"): 1}
