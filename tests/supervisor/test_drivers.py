import os
from pathlib import Path

import pytest

from supervisor.drivers import Card, Person, person_of, read_drivers

US = person_of(None)
OTHER = Person(uid=os.geteuid() + 4711, gids=frozenset())


def bus(root: Path, address: str, *, vendor: str, kind: str, driver: str | None) -> None:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver is not None:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)


def node(root: Path, path: str, *, mode: int) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    file.chmod(mode)
    return file


def test_display_controllers_are_listed_with_the_driver_that_has_them(tmp_path: Path) -> None:
    bus(tmp_path, "0000:01:00.0", vendor="0x10de", kind="0x030000", driver="nouveau")
    bus(tmp_path, "0000:01:00.1", vendor="0x10de", kind="0x040300", driver="snd_hda_intel")
    bus(tmp_path, "0000:03:00.0", vendor="0x1002", kind="0x038000", driver=None)
    bus(tmp_path, "0000:05:00.0", vendor="0x1af4", kind="0x030000", driver="virtio-pci")

    assert read_drivers(US, root=tmp_path).cards == (
        Card("0000:01:00.0", "NVIDIA", "nouveau"),
        Card("0000:03:00.0", "AMD", None),
    )


@pytest.mark.parametrize(
    ("mode", "person", "may_use"),
    [
        (0o600, US, True),
        (0o600, OTHER, False),
        (0o666, OTHER, True),
        (0o664, OTHER, False),
        (0o660, Person(OTHER.uid, frozenset((os.getegid(),))), True),
        (0o640, Person(OTHER.uid, frozenset((os.getegid(),))), False),
        (0o600, Person(0, frozenset()), True),
    ],
)
def test_a_device_file_is_open_to_its_owner_its_group_or_all(
    tmp_path: Path, mode: int, person: Person, may_use: bool
) -> None:
    node(tmp_path, "dev/dri/renderD128", mode=mode)

    (render,) = read_drivers(person, root=tmp_path).nodes

    assert (render.path, render.may_use) == ("/dev/dri/renderD128", may_use)


def test_a_group_whose_members_could_do_nothing_either_is_not_named(tmp_path: Path) -> None:
    node(tmp_path, "dev/kfd", mode=0o600)

    (kfd,) = read_drivers(OTHER, root=tmp_path).nodes

    assert (kfd.may_use, kfd.group) == (False, "")


def test_vulkans_drivers_are_those_its_loader_would_find(tmp_path: Path) -> None:
    node(tmp_path, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", mode=0o644)

    assert read_drivers(US, root=tmp_path).vulkan_drivers == ("radeon_icd.x86_64",)


def test_a_process_has_the_rights_of_who_runs_it_and_one_that_is_gone_ours() -> None:
    assert person_of(os.getpid()).uid == os.geteuid()
    assert person_of(os.getpid()).gids >= {os.getegid()}
    assert person_of(2**22 + 1) == US


def test_this_machine_can_be_read() -> None:
    drivers = read_drivers(US)

    assert all(card.vendor in ("NVIDIA", "AMD", "Intel") for card in drivers.cards)
