"""Sources are small classes, engines are shell scripts that list devices."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import DeviceKind, Note, NoteKind
from planners.settings import DeviceRule, MemoryRule, PlacementRules
from planners.sizes import GIB, MIB
from supervisor.devices.sighting import DeviceSource, Reading, Sighting
from supervisor.engines.backends import find_engines
from supervisor.engines.trial import parse_devices
from supervisor.probe import HardwareProbe
from tests.fakes.machines import RULES
from tests.fakes.system_parts import need_mesa

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hardware"
MACHINE = FIXTURES / "container-cgroup-v2"
CARD = Sighting(
    source="nvml",
    name="NVIDIA GeForce RTX 4090",
    kind=DeviceKind.DISCRETE,
    total_bytes=24 * GIB,
    free_bytes=20 * GIB,
    pci="0000:01:00.0",
)


class Fixed:
    """A source that sees the same each time."""

    def __init__(self, *sightings: Sighting, notes: tuple[Note, ...] = ()) -> None:
        self.name = "fixed"
        self.sees(*sightings, notes=notes)

    def sees(self, *sightings: Sighting, notes: tuple[Note, ...] = ()) -> None:
        self._reading = Reading(sightings, notes)

    def read(self) -> Reading:
        return self._reading


class Hung:
    """A source whose driver answers when it is let go."""

    name = "nvml"

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def read(self) -> Reading:
        self.let_go.wait(60)
        return Reading((CARD,))


class Refused:
    """A source whose files the kernel does not open."""

    name = "nvml"

    def read(self) -> Reading:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/sys/bus/pci/devices")


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    """An engine that lists what a file says, and the devices it listed at first."""

    def make(*lines: str, backend: str = "vulkan") -> Engine:
        listing = tmp_path / f"{backend}.txt"
        listing.write_text("".join(f"  {line}\n" for line in lines))
        path = tmp_path / f"{backend}-llama-server"
        path.write_text(f"#!/bin/sh\nexec cat {listing}\n")
        path.chmod(0o755)
        return Engine(
            engine_id=backend.ljust(12, "0"),
            backend=backend,
            path=str(path),
            source="config",
            env=(),
            flags=frozenset(),
            devices=parse_devices(f"  {line}" for line in lines),
            version="1",
        )

    return make


def rules(*devices: DeviceRule) -> PlacementRules:
    memory = MemoryRule(limit_bytes=8 * GIB, reserve_bytes=GIB)
    return replace(RULES, devices=devices, memory=memory, device_reserve_bytes=GIB)


def probe(
    *engines: Engine,
    sources: tuple[DeviceSource, ...] = (Fixed(),),
    read_s: float = 10.0,
    list_age_s: float = 60.0,
) -> HardwareProbe:
    return HardwareProbe(
        engines, rules(), root=MACHINE, sources=sources, read_s=read_s, list_age_s=list_age_s
    )


async def test_a_machine_without_devices_is_its_host_under_the_memory_rule() -> None:
    profile = await probe().profile()

    assert profile.devices == ()
    assert profile.notes == ()
    assert profile.host.available_bytes == int(9.5 * GIB)
    assert (profile.host.limit_bytes, profile.host.reserve_bytes) == (8 * GIB, GIB)


async def test_one_card_under_three_names_is_one_device(engine: Callable[..., Engine]) -> None:
    cuda = engine("CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 23000 MiB free)", backend="cuda")
    vulkan = engine("Vulkan0: NVIDIA GeForce RTX 4090 (24564 MiB, 19000 MiB free)")

    profile = await probe(cuda, vulkan, sources=(Fixed(CARD),)).profile()

    (device,) = profile.devices
    assert device.device_id == "pci:0000:01:00.0"
    assert device.engine_names == (("cuda", "CUDA0"), ("vulkan", "Vulkan0"))
    assert device.free_bytes == 19000 * MIB
    assert device.reserve_bytes == GIB


async def test_a_source_that_hangs_is_a_note_and_the_others_are_read() -> None:
    hung = Hung()
    begun_s = time.monotonic()

    profile = await probe(sources=(hung, Fixed(CARD)), read_s=0.2).profile()

    assert time.monotonic() - begun_s < 5
    assert [device.name for device in profile.devices] == ["NVIDIA GeForce RTX 4090"]
    assert profile.notes[0].text == "nvml: no answer within 0.2 s; its driver or disk may hang"
    hung.let_go.set()


async def test_a_driver_that_hangs_is_a_card_missing_where_no_engine_reaches_one(
    engine: Callable[..., Engine],
) -> None:
    reached = engine("CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 23000 MiB free)", backend="cuda")
    hung = Hung()

    without = await probe(engine(), sources=(hung,), read_s=0.2).profile()
    past_it = await probe(reached, sources=(hung,), read_s=0.2).profile()
    hung.let_go.set()

    assert [(one.name, one.reason) for one in without.absent] == [
        ("a card", "nvml: no answer within 0.2 s; its driver or disk may hang")
    ]
    assert past_it.absent == ()


async def test_a_source_that_the_kernel_refuses_is_a_note_and_the_others_are_read() -> None:
    profile = await probe(sources=(Refused(), Fixed(CARD))).profile()

    assert [device.name for device in profile.devices] == ["NVIDIA GeForce RTX 4090"]
    assert "Too many open files" in profile.notes[0].text


async def test_what_a_source_notes_is_in_the_profile() -> None:
    note = Note(NoteKind.DRIVER, "NVML: RM has detected an NVML/RM version mismatch.")

    profile = await probe(sources=(Fixed(notes=(note,)),)).profile()

    assert profile.notes == (note,)


async def test_a_card_that_cuda_is_not_to_see_is_not_used_by_vulkan_either(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(CARD, pci="0000:41:00.0", uuid="GPU-other")
    cuda = engine("CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 23000 MiB free)", backend="cuda")
    vulkan = engine(
        "Vulkan0: NVIDIA GeForce RTX 4090 (24564 MiB, 19000 MiB free)",
        "Vulkan1: NVIDIA GeForce RTX 4090 (24564 MiB, 19000 MiB free)",
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    profile = await probe(cuda, vulkan, sources=(Fixed(CARD, other),)).profile()

    hidden_one, shown = profile.devices
    assert (hidden_one.device_id, hidden_one.use) == ("pci:0000:01:00.0", False)
    assert (shown.device_id, shown.use) == ("pci:0000:41:00.0", True)
    assert [str(note) for note in profile.notes] == [
        "NVIDIA GeForce RTX 4090 (pci:0000:01:00.0) is left alone, since CUDA_VISIBLE_DEVICES=1"
        ' hides it; [devices."pci:0000:01:00.0"] use = true would use it as Vulkan0'
    ]


async def test_a_hidden_card_stays_hidden_while_its_library_hangs(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    vulkan = engine("Vulkan0: NVIDIA GeForce RTX 4090 (24564 MiB, 19000 MiB free)")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    source = Fixed(CARD)
    machine = probe(vulkan, sources=(source,))

    (before,) = (await machine.profile()).devices
    source.sees()
    (after,) = (await machine.profile()).devices

    assert (before.device_id, before.use) == ("pci:0000:01:00.0", False)
    assert (after.device_id, after.use) == (before.device_id, False)


async def test_a_card_without_an_engine_is_a_device_and_a_note() -> None:
    profile = await probe(sources=(Fixed(CARD),)).profile()

    assert profile.devices[0].engine_names == ()
    assert "no engine here sees it" in profile.notes[0].text


async def test_a_software_device_is_used_only_where_a_rule_says_so(
    engine: Callable[..., Engine],
) -> None:
    mesa = engine("Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)")
    plain = probe(mesa)
    before = await plain.profile()

    use = DeviceRule(name="vulkan0", limit_bytes=GIB, reserve_bytes=None, use=True)
    plain.adopt((mesa,), rules(use))
    after = await plain.profile()

    assert [(d.kind, d.use) for d in before.devices] == [(DeviceKind.SOFTWARE, False)]
    assert [(d.use, d.limit_bytes) for d in after.devices] == [(True, GIB)]


ARC = "Vulkan0: Intel(R) Arc(tm) A770 Graphics (DG2) (16032 MiB, {} MiB free)"


async def test_a_card_that_only_an_engine_knows_is_asked_for_its_free_memory_anew(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    watch = probe(engine(ARC.format(16000)), list_age_s=0.0)
    (tmp_path / "vulkan.txt").write_text(f"  {ARC.format(9000)}\n")

    profile = await watch.profile()

    assert profile.devices[0].free_bytes == 9000 * MIB


async def test_a_listing_of_a_moment_ago_is_not_asked_for_again(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    watch = probe(engine(ARC.format(16000)))
    (tmp_path / "vulkan.txt").unlink()

    profile = await watch.profile()

    assert profile.devices[0].free_bytes == 16000 * MIB
    assert profile.notes == ()


async def test_an_engine_that_stops_listing_leaves_its_cards_with_free_unknown(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    watch = probe(engine(ARC.format(16000)), list_age_s=0.0)
    (tmp_path / "vulkan.txt").unlink()

    profile = await watch.profile()

    assert profile.devices[0].total_bytes == 16032 * MIB
    assert profile.devices[0].free_bytes is None
    assert "--list-devices" in profile.notes[0].text


async def test_engines_are_not_asked_for_cards_that_a_vendors_library_covers(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    line = "CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 1000 MiB free)"
    watch = probe(engine(line, backend="cuda"), sources=(Fixed(CARD),), list_age_s=0.0)
    (tmp_path / "cuda.txt").unlink()

    profile = await watch.profile()

    assert profile.devices[0].free_bytes == CARD.free_bytes
    assert profile.notes == ()


async def test_an_integrated_gpu_offers_no_more_than_its_host(
    engine: Callable[..., Engine],
) -> None:
    apu = engine("Vulkan0: AMD Radeon 780M (RADV PHOENIX) (32768 MiB, 32000 MiB free)")

    profile = await probe(apu).profile()

    assert profile.devices[0].free_bytes == int(9.5 * GIB)


async def test_engines_are_asked_anew_at_once_where_cards_came_or_went(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    small = replace(CARD, name="NVIDIA GeForce RTX 3060", pci="0000:41:00.0", total_bytes=12 * GIB)
    alone = "CUDA0: NVIDIA GeForce RTX 3060 (12036 MiB, 11000 MiB free)"
    cuda, source = engine(alone, backend="cuda"), Fixed(small)
    machine = probe(cuda, sources=(source,))
    (before,) = (await machine.profile()).devices

    source.sees(CARD, small)
    both = "  CUDA0: NVIDIA GeForce RTX 4090 (24081 MiB, 23000 MiB free)\n"
    (tmp_path / "cuda.txt").write_text(f"{both}  {alone.replace('CUDA0', 'CUDA1')}\n")
    after = (await machine.profile()).devices

    assert before.engine_names == (("cuda", "CUDA0"),)
    assert {device.name: device.engine_name("cuda") for device in after} == {
        "NVIDIA GeForce RTX 4090": "CUDA0",
        "NVIDIA GeForce RTX 3060": "CUDA1",
    }


async def test_two_askers_at_once_both_get_a_profile() -> None:
    watch = probe(sources=(Fixed(CARD),))

    first, second = await asyncio.gather(watch.profile(), watch.profile())

    assert first == second


async def test_this_machine_is_profiled_without_raising() -> None:
    here = HardwareProbe((), rules())

    profile = await here.profile()

    assert profile.host.available_bytes > 0
    assert (await here.profile()).host.wake_s == profile.host.wake_s  # measured once


@pytest.mark.llama
async def test_mesas_software_device_is_found_through_the_real_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mesa()
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    found = await find_engines(state_dir=tmp_path, search_path="/nonexistent")

    profile = await HardwareProbe(found.engines, rules(), sources=(Fixed(),)).profile()

    (device,) = profile.devices
    assert device.device_id == "vulkan:Vulkan0"
    assert device.kind is DeviceKind.SOFTWARE
    assert not device.use


async def test_new_rules_do_not_make_an_old_listing_fresh(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    arc = engine(ARC.format(16000))
    watch = probe(arc, list_age_s=0.0)
    (tmp_path / "vulkan.txt").write_text(f"  {ARC.format(9000)}\n")
    await watch.profile()

    watch.adopt((arc,), rules())
    profile = await watch.profile()

    assert profile.devices[0].free_bytes == 9000 * MIB


async def test_engines_may_be_replaced_while_one_is_being_asked(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    slow = engine(ARC.format(16000))
    Path(slow.path).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nsleep 0.3\n")
    watch = probe(slow, list_age_s=0.0)
    first = asyncio.create_task(watch.profile())
    async with asyncio.timeout(20):
        while not (tmp_path / "asked").exists():
            await asyncio.sleep(0.01)  # cadence: no event crosses from a shell script

    watch.adopt((), rules())

    assert (await first).devices == ()
    assert (await watch.profile()).devices == ()


async def test_what_is_adopted_while_the_machine_is_read_counts_already(
    engine: Callable[..., Engine], tmp_path: Path
) -> None:
    asked = asyncio.Event()
    slow = replace(engine(backend="cpu"), flags=frozenset({"--rpc"}))
    go_on = tmp_path / "go-on"
    Path(slow.path).write_text(f"#!/bin/sh\nuntil [ -e {go_on} ]; do sleep 0.02; done\n")
    vulkan = engine(ARC.format(16000))

    def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server, asyncio.timeout(20):
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        looker = probe()
        looker.adopt((slow,), replace(rules(), rpc_servers=(address,)))
        reading = asyncio.create_task(looker.profile())
        await asked.wait()

        looker.adopt((vulkan,), rules())
        go_on.touch()
        profile = await reading

    assert [device.engine_names for device in profile.devices] == [(("vulkan", "Vulkan0"),)]
    assert profile.notes == ()
