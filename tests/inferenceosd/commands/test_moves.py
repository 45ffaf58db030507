"""inferenceosd.commands.moves: what is asked, and what comes of it."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from inferenceosd.commands.moves import move_text
from proxy.admin.moves import MoveReport
from tests.fakes.ctl_program import ctl

ALONE = MoveReport(
    model="qwen",
    order="break-before-make",
    streams=1,
    slots=1,
    moved_bytes=5 << 20,
    took_s=0.75,
    keeps_math=True,
    devices=(),
    context=4096,
    parallel=1,
)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "say what is to change"),
        (("--layers", "99"), 1, "qwen was not moved: the other plan does not fit"),
        (("--tensor-split", "3;1"), 2, "is no split such as 3,1"),
        (("--tensor-split", "0,0"), 2, "is no split such as 3,1"),
        (("--layers", "-1"), 2, "-1 is not in the range"),
    ],
)
def test_a_move_that_cannot_be_is_said(
    served: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = ctl(served, "migrate", "qwen", *arguments)

    assert result.exit_code == status
    assert said in result.output


@pytest.mark.parametrize(
    ("streams", "slots", "said"),
    [
        (0, 1, "0 streams go on; 1 slot went along"),
        (1, 0, "1 stream goes on; 0 slots went along"),
        (2, 2, "2 streams go on; 2 slots went along"),
    ],
)
def test_what_a_move_took_along_is_counted(streams: int, slots: int, said: str) -> None:
    assert said in move_text(replace(ALONE, streams=streams, slots=slots))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "say how much"),
        (("1GiB", "--back"), 2, "say how much"),
        (("much",), 2, "is no size such as 6GiB"),
        (("5",), 2, "5 without a unit is 5 bytes; write 5GiB or the like"),
        (("1048575",), 2, "1048575 without a unit is 1048575 bytes"),
        (("1GiB", "--device", "nowhere"), 1, "there is no device nowhere"),
    ],
)
def test_a_yield_that_cannot_be_is_said(
    served: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = ctl(served, "yield", *arguments)

    assert result.exit_code == status
    assert said in result.output


@pytest.mark.parametrize(
    ("size", "n_bytes"), [("1048576", 1 << 20), ("100KiB", 100 << 10), ("5b", 5), ("1GiB", 1 << 30)]
)
def test_a_yield_of_a_size_that_is_meant_is_asked_for(
    served: Path, size: str, n_bytes: int
) -> None:
    result = ctl(served, "yield", size, "--json")

    assert [given["n_bytes"] for given in json.loads(result.output)["yields"]] == [n_bytes]
