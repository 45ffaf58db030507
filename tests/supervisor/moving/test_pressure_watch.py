"""The watch on a fleet of real processes, those of the fake engine, and a card that is told."""

import asyncio
import math
import sys
import time

import psutil
import pytest
from msgspec.structs import replace

from planners.hardware import DeviceKind
from planners.pressure import PlaceCourse, PressureRules
from planners.sizes import GIB
from planners.view import InstanceState
from supervisor.devices.sighting import Reading, Sighting
from supervisor.moving.pressure_watch import NoSuchPlace, Yielded
from tests.fakes.fleet_world import TINY, MakeWorld, World

QUICK = PressureRules(
    low_bytes=GIB, high_bytes=2 * GIB, dwell_s=0.0, cooldown_s=0.0, calm_s=0.5, rise_cooldown_s=0.5,
    warm_s=0.0,
)  # fmt: skip
CARD = Sighting(
    source="cpu",  # the backend of an engine that lists no device
    name="a card",
    kind=DeviceKind.DISCRETE,
    total_bytes=24 * GIB,
    free_bytes=20 * GIB,
    engine_name="Vulkan0",
)
NONE = 0


class OneCard:
    """A card whose free memory a test changes."""

    name = "cpu"

    def __init__(self) -> None:
        self.free_bytes = 20 * GIB

    def read(self) -> Reading:
        """What is told."""
        return Reading((replace(CARD, free_bytes=self.free_bytes),))


async def given(world: World, n_bytes: int | None, *, for_s: float = math.inf) -> Yielded:
    hardware = await world.fleet.profile()
    return world.fleet.pressure.give(hardware, "a card", n_bytes, for_s=for_s)


async def read_anew(world: World) -> None:
    """Wait until the machine was read once more."""
    before = world.fleet.last_profile
    await world.until(lambda: world.fleet.last_profile is not before)


def layers(world: World) -> int | None:
    """On the card, of the one that serves; None while another one is on its way."""
    found = world.fleet.running()
    if len(found) != 1 or found[0].state is not InstanceState.READY:
        return None
    return found[0].plan.n_gpu_layers


async def test_a_yield_unloads_what_is_idle_and_holds_until_it_is_taken_back(
    fleet_world: MakeWorld,
) -> None:
    card = OneCard()
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = QUICK
        await world.served_by()
        assert layers(world)

        told = await given(world, None)

        assert told.limit_bytes == 0
        await world.until_state(None)
        await world.served_by()
        assert layers(world) == NONE

        world.fleet.pressure.take_back(await world.fleet.profile(), None)
        world.fleet.unload(TINY)
        await world.until_state(None)
        await world.served_by()
        assert layers(world)
        kinds = await world.kinds()
        assert kinds.count("memory.yielded") == kinds.count("memory.returned") == 1


async def test_a_yield_moves_what_is_in_use(fleet_world: MakeWorld) -> None:
    async with fleet_world(sources=(OneCard(),)) as world:
        await world.served_by()
        async with world.fleet.lease(TINY, caller="a") as lease:
            await given(world, None)

            await world.until(lambda: layers(world) == NONE)
            assert "too much on" in (world.fleet.moved(lease) or "")
            async with world.fleet.lease(TINY, caller="a", after=lease):
                assert (await world.kinds()).count("migration.done") == 1


async def test_a_yield_ends_by_itself(fleet_world: MakeWorld) -> None:
    async with fleet_world(sources=(OneCard(),)) as world:
        await world.served_by(keep_alive_s=math.inf)

        await given(world, GIB, for_s=0.2)

        assert layers(world), "as much as that was free"
        await world.until(lambda: not world.fleet.pressure.yields())


async def test_a_yield_names_a_place_that_is_there(fleet_world: MakeWorld) -> None:
    async with fleet_world(sources=(OneCard(),)) as world:
        hardware = await world.fleet.profile()

        with pytest.raises(NoSuchPlace, match="there are: host, "):
            world.fleet.pressure.give(hardware, "nowhere", GIB, for_s=1.0)
        assert world.fleet.pressure.take_back(hardware, None) == ()


async def test_a_model_in_use_leaves_a_card_that_others_fill_and_comes_back_to_it(
    fleet_world: MakeWorld,
) -> None:
    card = OneCard()
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = QUICK
        await world.served_by(keep_alive_s=math.inf)
        before = layers(world)
        async with world.fleet.lease(TINY, caller="a"):
            card.free_bytes = GIB // 2
            await world.until(lambda: layers(world) == NONE)

        card.free_bytes = 20 * GIB
        await world.until(lambda: layers(world) == before)

        kinds = await world.kinds()
        assert kinds.count("pressure.relieved") == kinds.count("pressure.lifted") == 1
        assert kinds.count("migration.done") == 2


async def test_an_idle_model_unloads_when_others_fill_its_card(fleet_world: MakeWorld) -> None:
    card = OneCard()
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = QUICK
        await world.served_by(keep_alive_s=math.inf)

        card.free_bytes = GIB // 2

        await world.until_state(None)
        assert dict(world.journal.counts.evictions) == {(TINY, "memory"): 1}


async def test_waves_of_others_need_move_nothing_more_often_than_the_rest_allows(
    fleet_world: MakeWorld,
) -> None:
    card = OneCard()
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = replace(QUICK, cooldown_s=60.0, calm_s=60.0)
        await world.served_by(keep_alive_s=math.inf)
        async with world.fleet.lease(TINY, caller="a"):
            for free_bytes in (GIB // 2, 20 * GIB, GIB // 2, 20 * GIB):
                card.free_bytes = free_bytes
                await read_anew(world)

        assert (await world.kinds()).count("migration.begun") <= 1


async def test_what_was_known_of_memory_counts_no_more_once_nobody_looked(
    fleet_world: MakeWorld,
) -> None:
    card = OneCard()
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = replace(QUICK, dwell_s=600.0)
        await world.served_by(keep_alive_s=math.inf)
        card.free_bytes = GIB // 2
        await world.until(lambda: any(p.is_short for p in known(world)))

        world.fleet.unload(TINY)

        await world.until_state(None)
        await world.until(lambda: not known(world))


def known(world: World) -> tuple[PlaceCourse, ...]:
    return tuple(world.fleet.pressure.course.places.values())


WAVE_RULES = PressureRules(
    low_bytes=GIB, high_bytes=3 * GIB, dwell_s=1.0, cooldown_s=6.0, calm_s=3.0, rise_cooldown_s=12.0
)
WAVES_S = 40.0
PEAK_BYTES = 320 << 20
WIDENED = 64  # bytes of the card for each that the program has: 20 GiB by a little machine


class SharedCard:
    """A card of which a program takes what it takes of the host, widened."""

    name = "cpu"

    def __init__(self) -> None:
        self.program: psutil.Process | None = None

    def read(self) -> Reading:
        """What the program leaves."""
        try:
            used = self.program.memory_info().rss if self.program is not None else 0
        except psutil.NoSuchProcess:
            used = 0
        return Reading((replace(CARD, free_bytes=max(0, 20 * GIB - WIDENED * used)),))


@pytest.mark.timeout(240)
async def test_a_program_that_takes_memory_in_waves_costs_no_answer_and_has_few_moves(
    fleet_world: MakeWorld,
) -> None:
    card = SharedCard()
    argv = ("-m", "bench.migration.waves", "--peak", str(PEAK_BYTES), "--seed", "5", "--pace", "3")
    async with fleet_world(sources=(card,)) as world:
        world.fleet.pressure.rules = WAVE_RULES
        program = await asyncio.create_subprocess_exec(
            sys.executable, *argv, "--seconds", str(WAVES_S), stdout=asyncio.subprocess.PIPE
        )
        card.program = psutil.Process(program.pid)
        began_s = time.monotonic()
        ended = asyncio.create_task(program.wait())
        n_served = 0

        while not ended.done():
            async with world.fleet.lease(TINY, caller="a", keep_alive_s=math.inf):
                await asyncio.wait({ended}, timeout=0.5)  # the cadence of requests
            n_served += 1

        took_s = time.monotonic() - began_s
        kinds = await world.kinds()
        assert n_served
        assert 1 <= kinds.count("pressure.relieved") <= 1 + took_s / WAVE_RULES.cooldown_s
        assert kinds.count("pressure.lifted") <= 1 + took_s / WAVE_RULES.rise_cooldown_s
        assert "instance.ended" not in kinds
        assert "migration.failed" not in kinds
