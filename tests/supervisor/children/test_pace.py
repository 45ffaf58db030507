import pytest

from planners.lessons.usage import Usage
from supervisor.children.pace import WEIGHT, Pace


def usage(*, prompt: tuple[int, float] = (0, 0.0), decode: tuple[int, float] = (0, 0.0)) -> Usage:
    """Tokens and seconds of each."""
    return Usage(prompt[0], prompt[1], decode[0], decode[1])


def test_the_first_exchange_is_the_pace_and_the_next_ones_move_it() -> None:
    pace = Pace()
    pace.served(usage(prompt=(100, 1.0), decode=(50, 1.0)))
    assert (pace.prompt_tokens_per_s, pace.decode_tokens_per_s) == (100.0, 50.0)

    pace.served(usage(prompt=(200, 1.0), decode=(10, 1.0)))

    assert pace.prompt_tokens_per_s == pytest.approx(100.0 + WEIGHT * 100.0)
    assert pace.decode_tokens_per_s == pytest.approx(50.0 - WEIGHT * 40.0)


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(usage(), id="nothing"),
        pytest.param(usage(decode=(1, 1.0)), id="one token"),
        pytest.param(usage(prompt=(5, 0.0), decode=(5, 0.0)), id="no time"),
    ],
)
def test_what_shows_no_rate_changes_none(silent: Usage) -> None:
    pace = Pace()

    pace.served(silent)

    assert (pace.prompt_tokens_per_s, pace.decode_tokens_per_s) == (None, None)
