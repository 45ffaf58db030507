"""Every case of Ollama's HTTP contract against the real daemon, engine and model."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir

HERE = Path(__file__).parent
CASES = HERE / "ollama_cases.jsonl"
MORE = HERE / "more_cases.jsonl"
"""Every further field, form and refusal of the contract."""
MODEL = "SmolLM2-135M-Instruct.Q4_1:latest"
DELIBERATE = {
    "v1_chat_nonstream": 'system_fingerprint eq "fp_ollama"',
    "cors_foreign_origin_403": "empty body",
    "host_foreign_403": "empty body",
}
"""Where the daemon differs on purpose, as docs/ollama.md says, and what of the case fails."""

pytestmark = [pytest.mark.llama, pytest.mark.timeout(600)]


def test_no_case_fails_but_those_that_differ_on_purpose() -> None:
    with daemon() as started:
        *failed, counts = told(started)
        more = told(started, cases=MORE)

    assert {line.partition(":")[0] for line in failed} == DELIBERATE.keys(), failed
    for line in failed:
        assert DELIBERATE[line.partition(":")[0]] in line
    n_cases = len(CASES.read_text().splitlines())
    assert counts == f"{n_cases - len(failed)} passed, {len(failed)} failed, 0 skipped"
    assert more == [f"{len(MORE.read_text().splitlines())} passed, 0 failed, 0 skipped"]


def test_a_strict_daemon_does_not_differ() -> None:
    cases = [*DELIBERATE, "prompt_longer_than_context_shift_off"]
    with daemon("[server]\nollama_strict = true\n") as started:
        counts = told(started, only=cases)

    assert counts == [f"{len(cases)} passed, 0 failed, 0 skipped"]


@contextmanager
def daemon(config: str = "") -> Iterator[StartedDaemon]:
    """With the quickstart's model, its engines tried."""
    models = quickstart_model_dir()
    assert models is not None, "make installs the quickstart model first"
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(Path(folder), model_dirs=[models], config=config) as started,
    ):
        started.wait_for_engines()
        yield started


def told(started: StartedDaemon, only: Sequence[str] = (), *, cases: Path = CASES) -> list[str]:
    """A line for each case that fails, then the counts."""
    argv = [sys.executable, str(HERE / "run_cases.py"), str(cases)]
    argv += ["--base", started.base, "--model", MODEL]
    for name in only:
        argv += ["--only", name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout.splitlines()
