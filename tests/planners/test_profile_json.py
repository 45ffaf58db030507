import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.hardware import (
    Absence,
    Device,
    DeviceId,
    DeviceKind,
    HardwareProfile,
    Host,
    Note,
    NoteKind,
    NumaNode,
    Storage,
)
from planners.profile_json import (
    MAX_CHARS,
    BadProfile,
    RecordedProfile,
    decode_profile,
    encode_profile,
)

PROFILES = Path(__file__).parents[1] / "fixtures" / "hardware" / "profiles"
LAPTOP = (PROFILES / "laptop-nvidia-intel.json").read_text()

texts = st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=40).filter(
    str.isprintable
)
sizes = st.integers(0, 1 << 56)
rates = st.none() | st.floats(1, 1e18)
devices = st.builds(
    Device,
    device_id=texts.map(DeviceId),
    kind=st.sampled_from(DeviceKind),
    name=texts,
    engine_names=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    total_bytes=st.none() | sizes,
    free_bytes=st.none() | sizes,
    limit_bytes=st.none() | sizes,
    reserve_bytes=sizes,
    use=st.booleans(),
    is_carved_out=st.booleans(),
    bandwidth_bytes_per_s=rates,
    link_bytes_per_s=rates,
    compute_flops=rates,
    numa_node=st.none() | st.integers(0, 100),
)
hosts = st.builds(
    Host,
    total_bytes=st.just(1 << 56),
    available_bytes=sizes,
    cgroup_limit_bytes=st.none() | sizes,
    n_cores=st.integers(1, 512),
    n_physical_cores=st.integers(1, 512),
    cpu_name=texts,
    limit_bytes=st.none() | sizes,
    reserve_bytes=sizes,
    psi_some_avg10=rates,
    numa_nodes=st.lists(
        st.builds(NumaNode, st.integers(0, 64), sizes, st.integers(0, 512)), max_size=3
    ).map(tuple),
    bandwidth_bytes_per_s=rates,
    wake_s=st.none() | st.floats(1e-9, 1.0),
    has_tiles=st.booleans(),
)
notes = st.builds(Note, st.sampled_from(NoteKind), texts, st.none() | texts.map(DeviceId))
profiles = st.builds(
    HardwareProfile,
    host=hosts,
    devices=st.lists(devices, max_size=4, unique_by=lambda device: device.device_id).map(tuple),
    notes=st.lists(notes, max_size=3).map(tuple),
    storage=st.lists(st.builds(Storage, texts, st.none() | sizes, rates), max_size=2).map(tuple),
)


@given(hardware=profiles, origin=texts)
def test_what_is_recorded_is_what_is_read(hardware: HardwareProfile, origin: str) -> None:
    recorded = RecordedProfile(origin, hardware)

    assert decode_profile(encode_profile(recorded)) == recorded


def test_what_is_missing_at_the_moment_is_no_part_of_a_machine() -> None:
    laptop = decode_profile(LAPTOP)
    degraded = replace(laptop.hardware, absent=(Absence("RTX 4090", "it left"),))

    assert decode_profile(encode_profile(replace(laptop, hardware=degraded))) == laptop


@given(notes=st.lists(st.text(), max_size=3), long=st.integers(400, 900))
def test_notes_of_any_length_and_any_characters_can_be_read_back(
    notes: list[str], long: int
) -> None:
    laptop = decode_profile(LAPTOP)
    told = tuple(Note(NoteKind.ENGINE, text) for text in (*notes, "x" * long))
    noted = replace(laptop.hardware, notes=told)

    read = decode_profile(encode_profile(replace(laptop, hardware=noted)))

    assert [len(note.text) for note in read.hardware.notes] == [*map(len, notes), min(long, 500)]


@given(st.text(max_size=200))
def test_any_text_is_a_profile_or_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(BadProfile, match="no hardware profile: "):
        decode_profile(text)


def changed(change: Callable[[Any], object]) -> str:
    """The laptop's profile with one thing changed."""
    found = json.loads(LAPTOP)
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p.update(format="hwinfo"), "format must be 'inferenceosd-hardware'"),
        (lambda p: p.update(version=2), "version must be 1; another inferenceosd wrote it"),
        (lambda p: p.update(version=True), "version must be 1"),
        (lambda p: p.update(extra=1), "extra is not known"),
        (lambda p: p.pop("origin"), "origin must be a printable text"),
        (lambda p: p.update(origin="\x1b]0;owned\x07"), "origin must be a printable text"),
        (lambda p: p.pop("host"), "host must be an object"),
        (lambda p: p["host"].update(n_cores=0), "host.n_cores must be a whole number from 1"),
        (lambda p: p["host"].update(total_bytes=-1), "host.total_bytes must be a whole number"),
        (lambda p: p["host"].update(total_bytes=1.5), "host.total_bytes must be a whole number"),
        (lambda p: p["host"].update(total_bytes=10**30), "host.total_bytes must be a whole number"),
        (lambda p: p["host"].update(available_bytes=1 << 50), "host.available_bytes must be"),
        (lambda p: p["host"].update(psi_some_avg10=float("nan")), "host.psi_some_avg10 must be"),
        (lambda p: p["host"].update(psi_some_avg10="0"), "host.psi_some_avg10 must be a number"),
        (lambda p: p.update(devices={}), "devices must be a list of at most 128"),
        (lambda p: p.update(devices=p["devices"] * 100), "devices must be a list of at most 128"),
        (lambda p: p.update(devices=[3]), r"devices\[0\] must be an object"),
        (lambda p: p["devices"][1].update(kind="quantum"), r"devices\[1\].kind 'quantum' is no"),
        (lambda p: p["devices"][1].update(free_bytes=True), r"devices\[1\].free_bytes must be"),
        (lambda p: p["devices"][1].update(use="no"), r"devices\[1\].use must be true or false"),
        (lambda p: p["devices"][0].update(engine_names=["x"]), r"engine_names\[0\] must be a pair"),
        (lambda p: p["devices"][0].update(vram=1), r"devices\[0\].vram is not known"),
        (lambda p: p["devices"].append(p["devices"][0]), "is there twice"),
        (lambda p: p["devices"][0].update(device_id="host"), "'host' is the host's memory"),
        (lambda p: p["devices"][0].update(compute_flops=0), "compute_flops must be from 1 to"),
        (lambda p: p["host"].update(bandwidth_bytes_per_s=5e-324), "must be from 1 to"),
        (lambda p: p["host"].update(bandwidth_bytes_per_s=10**400), "must be from 1 to"),
        (lambda p: p["host"].update(wake_s=0), "host.wake_s must be from 1e-09 to 1"),
        (lambda p: p["host"].update(wake_s=float("inf")), "host.wake_s must be from 1e-09 to 1"),
        (lambda p: p["host"].update(wake_s="soon"), "host.wake_s must be a number"),
        (lambda p: p["host"].update(has_tiles=1), "host.has_tiles must be"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], object], sentence: str) -> None:
    with pytest.raises(BadProfile, match=sentence):
        decode_profile(changed(change))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 50_000, "9" * 100_000, " " * (MAX_CHARS + 1), '{"version": 1e999}'],
    ids=["deep lists", "deep objects", "a long number", "too long", "infinity"],
)
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(BadProfile):
        decode_profile(text)


def test_what_nobody_told_is_unknown() -> None:
    bare = changed(lambda p: [d.pop("bandwidth_bytes_per_s") for d in p["devices"]])

    assert decode_profile(bare).hardware.devices[0].bandwidth_bytes_per_s is None
