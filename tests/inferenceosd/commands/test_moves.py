"""inferenceosd.commands.moves: what is asked, and what comes of it."""

from pathlib import Path

import pytest

from tests.fakes.ctl_program import ctl


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
    ("arguments", "status", "said"),
    [
        ((), 2, "say how much"),
        (("1GiB", "--back"), 2, "say how much"),
        (("much",), 2, "is no size such as 6GiB"),
        (("1GiB", "--device", "nowhere"), 1, "there is no device nowhere"),
    ],
)
def test_a_yield_that_cannot_be_is_said(
    served: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = ctl(served, "yield", *arguments)

    assert result.exit_code == status
    assert said in result.output
