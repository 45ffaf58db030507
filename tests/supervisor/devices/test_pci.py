from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from supervisor.devices.pci import link_bytes_per_s, numa_node

Tree = Callable[[Mapping[str, str]], Path]
CARD = "0000:03:00.0"


def slot(
    tree: Tree, *, card: Mapping[str, str], bridges: Mapping[str, Mapping[str, str]] | None = None
) -> Path:
    """A root where `card` lies below `bridges`, as the kernel nests and links them."""
    folder = "sys/devices/pci0000:00"
    files = {}
    for bridge, facts in (bridges or {}).items():
        folder = f"{folder}/{bridge}"
        files.update({f"{folder}/{name}": text for name, text in facts.items()})
    files.update({f"{folder}/{CARD}/{name}": text for name, text in card.items()})
    root = tree(files)
    link = root / "sys/bus/pci/devices" / CARD
    link.parent.mkdir(parents=True)
    link.symlink_to(root / folder / CARD)
    return root


def link(
    speed: str, width: int, *, now: str | None = None, in_use: int | None = None
) -> dict[str, str]:
    return {
        "max_link_speed": f"{speed} GT/s PCIe\n",
        "max_link_width": f"{width}\n",
        "current_link_speed": f"{now or speed} GT/s PCIe\n",
        "current_link_width": f"{width if in_use is None else in_use}\n",
    }


def test_a_link_that_idles_slowly_is_as_fast_as_it_can_be(tree: Tree) -> None:
    root = slot(tree, card=link("16.0", 16, now="2.5"))

    assert link_bytes_per_s(root, CARD) == pytest.approx(31.5e9, rel=0.01)


def test_the_slowest_hop_counts(tree: Tree) -> None:
    root = slot(
        tree, card=link("16.0", 16), bridges={"0000:00:01.0": link("8.0", 4), "0000:02:00.0": {}}
    )

    assert link_bytes_per_s(root, CARD) == pytest.approx(3.94e9, rel=0.01)


def test_a_card_on_fewer_lanes_than_it_has_is_as_fast_as_those(tree: Tree) -> None:
    root = slot(tree, card=link("32.0", 16, in_use=8))

    assert link_bytes_per_s(root, CARD) == pytest.approx(31.5e9, rel=0.01)


@pytest.mark.parametrize(
    "card",
    [{}, {"max_link_speed": "Unknown\n", "max_link_width": "16\n"}, link("16.0", 255)],
    ids=["no files", "unknown speed", "a width no link has"],
)
def test_a_link_that_is_not_told_is_unknown(tree: Tree, card: Mapping[str, str]) -> None:
    assert link_bytes_per_s(slot(tree, card=card), CARD) is None
    assert link_bytes_per_s(Path("/nonexistent"), CARD) is None


def test_a_card_hangs_on_a_node_or_on_none(tree: Tree) -> None:
    assert numa_node(slot(tree, card={"numa_node": "1\n"}), CARD) == 1


def test_a_machine_of_one_node_names_none(tree: Tree) -> None:
    assert numa_node(slot(tree, card={"numa_node": "-1\n"}), CARD) is None
