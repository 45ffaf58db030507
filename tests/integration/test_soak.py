"""The short form of `make soak`, on the real engine."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
def test_no_answer_is_lost_or_wrong_while_children_die_and_models_change() -> None:
    soak = [sys.executable, "-m", "bench.soak", "--seconds", "12", "--seed", "3"]

    told = subprocess.run(soak, capture_output=True, text=True, timeout=220, check=False)

    assert told.returncode == 0, told.stdout + told.stderr
