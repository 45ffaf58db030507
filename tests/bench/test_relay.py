"""bench.relay in its short form: it runs, on the real daemon, and its account holds together."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.relay.__main__ import CROWD_MODELS, EMBED_MODEL, OURS, Stage, measured, report, stage
from bench.relay.built import program
from bench.relay.cases import CASES
from bench.relay.crowd import STREAMS, crowd, lost_races


@pytest.mark.timeout(300)
def test_every_case_is_answered_without_an_error_and_told_in_a_line() -> None:
    with TemporaryDirectory(prefix="ios-bench-") as folder, stage(Path(folder)) as found:
        load = program("load", Path(folder))

        table = measured(CASES, found.peers, load, rounds=1, seconds=0.3, seed=1)
        lines = report(CASES, table).splitlines()

        assert not any(samples.errors for samples in table.values())
        for case, line in zip(CASES, lines[1:], strict=True):
            assert line.startswith(case.name)
        assert all(table[case.name, OURS].cpu_us[0] > 0 for case in CASES)
        _a_crowd_comes_and_goes(found)
        n_requests, n_errors = lost_races(found.daemon, load, EMBED_MODEL, at_least=500)
        assert n_requests >= 500
        assert n_errors == 0


def _a_crowd_comes_and_goes(found: Stage) -> None:
    """Each of its callers has a slot, and none is left behind."""
    held = crowd(found.daemon, CROWD_MODELS)

    assert STREAMS == 1000
    assert held.bytes_per_stream > 0
    assert sum(each["running"] for each in found.daemon.status()["instances"]) == 0
