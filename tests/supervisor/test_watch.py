"""The watch over a real probe, whose source is told what to see."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import DeviceKind, Note, NoteKind
from planners.instances.absence import NOBODY
from planners.settings import DeviceRule, PlacementRules
from planners.sizes import GIB
from supervisor.devices.sighting import Reading, Sighting
from supervisor.engines.trial import parse_devices
from supervisor.probe import HardwareProbe
from supervisor.records.journal import Journal, open_journal
from supervisor.suspend import suspended_s
from supervisor.watch import DeviceWatch
from tests.fakes.machines import RULES
from tests.fakes.rpc_servers import free_port

CARD = Sighting(
    source="nvml",
    name="NVIDIA GeForce RTX 4090",
    kind=DeviceKind.DISCRETE,
    total_bytes=24 * GIB,
    free_bytes=20 * GIB,
    pci="0000:01:00.0",
)
LISTED = "  CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 23000 MiB free)\n"
LOST = Reading(notes=(Note(NoteKind.DRIVER, "NVML: GPU is lost"),))


class Told:
    """A source that sees what it is told to."""

    name = "told"

    def __init__(self) -> None:
        self.reading = Reading((CARD,))

    def read(self) -> Reading:
        return self.reading


@dataclass
class Machine:
    """A watched machine and what a test may do to it."""

    source: Told
    listing: Path
    journal: Journal
    watch: DeviceWatch
    slept_s: float = 0.0

    async def events(self) -> list[tuple[str, str]]:
        told = await self.journal.events(model_id=None, since=0.0, limit=100)
        return [(event.kind, event.reason) for event in told]

    @property
    def times_listed(self) -> int:
        asked = self.listing.with_suffix(".asked")
        return len(asked.read_text().splitlines()) if asked.exists() else 0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Callable[..., Machine]]:
    listing = tmp_path / "devices.txt"
    listing.write_text(LISTED)
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho >> {listing.with_suffix('.asked')}\nexec cat {listing}\n")
    program.chmod(0o755)
    async with open_journal(tmp_path / "journal.db") as journal:

        def make(
            *, listed: str = LISTED, rules: PlacementRules = RULES, relook_s: float = 3600.0
        ) -> Machine:
            listing.write_text(listed)
            devices = parse_devices(listed.splitlines())
            engine = Engine(
                "cuda-engine", "cuda", str(program), "config", (), frozenset(), devices, "1"
            )
            source = Told()
            probe = HardwareProbe((engine,), rules, sources=(source,))
            made: list[Machine] = []
            watch = DeviceWatch(
                probe,
                journal,
                suspended=lambda: made[0].slept_s if made else 0.0,
                relook_s=relook_s,
            )
            made.append(Machine(source, listing, journal, watch))
            return made[0]

        yield make


async def test_a_card_that_goes_degrades_the_machine_and_its_return_mends_it(
    machine: Callable[..., Machine],
) -> None:
    here = machine()
    assert (await here.watch.profile()).absent == ()

    here.source.reading = LOST
    here.listing.write_text("  (none)\n")
    here.watch.device_lost("CUDA error: unspecified launch failure")
    gone = await here.watch.profile()
    here.source.reading = Reading((CARD,))
    here.listing.write_text(LISTED)
    here.watch.device_lost("again")
    back = await here.watch.profile()

    assert gone.absent[0].reason == "NVML: GPU is lost"
    assert back.absent == ()
    assert [kind for kind, _ in await here.events()] == [
        "device.failed",
        "device.disappeared",
        "machine.degraded",
        "device.failed",
        "device.appeared",
        "machine.recovered",
    ]


async def test_a_library_that_fails_takes_no_card_along_that_its_engine_still_lists(
    machine: Callable[..., Machine],
) -> None:
    here = machine()
    (before,) = (await here.watch.profile()).devices

    here.source.reading = LOST
    here.watch.device_lost("CUDA error: unspecified launch failure")
    (still,) = (await here.watch.profile()).devices

    assert still.device_id == before.device_id == "pci:0000:01:00.0"
    assert [kind for kind, _ in await here.events()] == ["device.failed"]


async def test_a_card_whose_library_answers_late_has_neither_come_nor_gone(
    machine: Callable[..., Machine],
) -> None:
    here = machine()
    here.source.reading = LOST
    (by_engine,) = (await here.watch.profile()).devices

    here.source.reading = Reading((CARD,))
    late = await here.watch.profile()

    assert by_engine.device_id == "cuda:CUDA0"
    assert [device.device_id for device in late.devices] == ["pci:0000:01:00.0"]
    assert late.absent == ()
    assert await here.events() == []


async def test_what_a_source_says_beside_its_cards_is_no_reason_for_a_missing_one(
    machine: Callable[..., Machine],
) -> None:
    here = machine()
    await here.watch.profile()
    other = replace(CARD, name="NVIDIA GeForce RTX 3060", pci="0000:41:00.0", total_bytes=12 * GIB)

    here.source.reading = Reading((other,), (Note(NoteKind.DRIVER, "no names: /dev/dri"),))
    here.listing.write_text("  (none)\n")
    gone = await here.watch.profile()

    assert [absent.reason for absent in gone.absent] == [NOBODY]


async def test_engines_are_asked_anew_after_a_sleep(machine: Callable[..., Machine]) -> None:
    here = machine()
    await here.watch.profile()
    assert (here.watch.is_due(), here.watch.resumed_at) == (False, None)

    here.slept_s = 3600.0
    assert here.watch.is_due()
    await here.watch.profile()

    assert here.times_listed == 1
    assert here.watch.resumed_at is not None
    assert not here.watch.is_due()
    assert await here.events() == [
        ("machine.resumed", "it slept for 3600 s; devices are read anew")
    ]


async def test_engines_are_asked_again_and_again_only_while_a_wanted_device_is_missing(
    machine: Callable[..., Machine],
) -> None:
    wanted = replace(RULES, devices=(DeviceRule("CUDA1", None, None, use=True),))
    content, short = machine(relook_s=0.0), machine(rules=wanted, relook_s=0.0)
    await content.watch.profile()
    await short.watch.profile()

    assert not content.watch.is_due()
    assert short.watch.is_due()
    before = short.times_listed
    await short.watch.profile()
    assert short.times_listed == before + 1
    assert [kind for kind, _ in await short.events()].count("machine.degraded") == 1


async def test_a_card_whose_driver_came_up_late_is_asked_of_the_engines_once(
    machine: Callable[..., Machine],
) -> None:
    here = machine(listed="  (none)\n")
    here.source.reading = Reading()
    await here.watch.profile()

    here.source.reading = Reading((CARD,))
    await here.watch.profile()
    assert here.watch.is_due()
    assert here.watch.appeared.is_set()
    here.listing.write_text(LISTED)
    late = await here.watch.profile()

    assert late.devices[0].engine_names == (("cuda", "CUDA0"),)
    assert not here.watch.is_due()
    assert ("device.appeared", f"{CARD.name} (pci:{CARD.pci})") in await here.events()


async def test_a_server_that_does_not_answer_is_no_card_without_an_engine(
    machine: Callable[..., Machine],
) -> None:
    here = machine(rules=replace(RULES, rpc_servers=(f"127.0.0.1:{free_port()}",)))
    await here.watch.profile()

    profile = await here.watch.profile()

    assert [device.kind for device in profile.devices] == [DeviceKind.DISCRETE, DeviceKind.REMOTE]
    assert not here.watch.is_due()
    assert not here.watch.appeared.is_set()
    assert [kind for kind, _ in await here.events()] == ["machine.degraded"]


async def test_a_missing_server_alone_has_no_engine_asked_anew(
    machine: Callable[..., Machine],
) -> None:
    rules = replace(RULES, rpc_servers=(f"127.0.0.1:{free_port()}",))
    here = machine(rules=rules, relook_s=0.0)

    assert (await here.watch.profile()).absent

    assert not here.watch.is_due()


def test_this_machines_sleep_is_counted_and_only_grows() -> None:
    first, second = suspended_s(), suspended_s()

    assert first >= 0.0
    assert second - first < 1.0
