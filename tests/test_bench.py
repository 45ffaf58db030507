"""bench/ runs, and its table says what its readers look for; never how long things took."""

import pytest

from bench.__main__ import measured

ROWS = [
    "time to first byte, 1-token chat",
    "time per streamed chunk",
    "CPU per request, all processes",
    "CPU per streamed chunk, all processes",
]


@pytest.mark.llama
def test_a_short_seeded_run_fills_the_whole_table() -> None:
    head, *rows = measured(rounds=2, n_tokens=8, seed=1).splitlines()

    assert head.split() == ["median", "of", "direct", "daemon", "added", "ratio", "A/A"]
    assert [row[:40].rstrip() for row in rows] == ROWS
    for row in rows:
        *values, ratio, ratio_of_noise = row[40:].split()
        assert values[1::2] in (["ms"] * 3, ["µs"] * 3)
        assert all(float(number) > 0 for number in (values[0], values[2], ratio, ratio_of_noise))
