"""bench/ runs, and its table says what its readers look for; never how long things took."""

import pytest

from bench import death, speed, start
from bench.__main__ import measured
from bench.migration import pressure
from bench.migration.__main__ import measured as migrated

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


@pytest.mark.llama
async def test_a_short_run_of_the_speed_bench_prints_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await speed.measured(slots=[1], rounds=2, n_tokens=4, prompt_rounds=0)

    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.split()[:1] == ["1"])
    assert "t1 ub512:" in row


@pytest.mark.llama
def test_a_killed_child_fills_the_whole_table_of_deaths() -> None:
    head, *rows = death.report(death.measured(rounds=1)).splitlines()

    assert head.split() == ["ms", "median", "max"]
    assert [row[:30].rstrip() for row in rows] == list(death.LINES)


@pytest.mark.llama
def test_a_daemon_started_once_fills_the_whole_table_of_starts() -> None:
    head, *rows = start.measured(rounds=1, idle_s=0.2).splitlines()

    assert head.split() == ["median", "of", "1,", "ms", "wall", "CPU"]
    assert [row[:24].rstrip() for row in rows] == [
        "exec to first answer",
        "peer, exec to exit",
        "idle RSS",
        "idle CPU",
    ]
    assert all(float(row[24:32].rstrip("% ")) >= 0 for row in rows)


@pytest.mark.llama
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["moves", "kills"])
def test_streams_of_models_that_move_or_die_come_to_the_same_words(what: str) -> None:
    account = migrated(what, n_hit=1, seed=1)

    assert account.is_good, account.text()
    assert account.hit >= 1
    assert ": 0 failed, 0 silent ends, 0 in other words" in account.text()


@pytest.mark.root
@pytest.mark.llama
@pytest.mark.timeout(300)
def test_a_minute_of_others_memory_in_waves_kills_nobody_and_loses_no_request() -> None:
    account = pressure.measured(seconds=60.0, seed=1)

    assert account.is_good, account.text()
    assert account.events["pressure.relieved"] >= 1
    assert account.answered
