"""The real engine in less memory than the machine says that it has."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import packaged_engine

MOST_KIB = 1_850_000  # of address space: half of the KV cache fits beside engine and weights


def tight_engine(folder: Path) -> Path:
    """The packaged engine as a system would run it that grants a process only so much."""
    packaged = packaged_engine()
    assert packaged is not None
    wrapper = folder / "llama-server"
    # glibc sets 64 MiB of address space aside for each thread that allocates, however little
    limits = f"export MALLOC_ARENA_MAX=1\nulimit -v {MOST_KIB}"
    wrapper.write_text(f'#!/bin/sh\n{limits}\nexec "{packaged.path}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def served(daemon: StartedDaemon, model: str) -> Any:
    """Ask it something; its one instance then."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with httpx.Client(base_url=daemon.base, timeout=120, trust_env=False) as client:
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    (instance,) = daemon.status()["instances"]
    return instance


def deaths(daemon: StartedDaemon) -> list[str]:
    """Why its processes ended unasked, so far."""
    told = daemon.ctl("events", "--json")
    events = json.loads(told.stdout)["events"]
    return [event["reason"] for event in events if event["kind"] == "instance.ended"]


@pytest.mark.timeout(240)
def test_less_context_is_tried_where_memory_runs_out_and_remembered_by_the_next_daemon(
    tmp_path: Path, short_folder: Path, model_dir: Path
) -> None:
    model_file = next(model_dir.glob("*.gguf"))
    config = (
        f'[backends.tight]\npath = "{tight_engine(tmp_path)}"\n[engine]\norder = ["tight"]\n'
        # What is free drifts between two daemons on a busy machine; a limit stands still.
        f'[memory]\nlimit = "8GiB"\n[[model]]\nname = "m"\npath = "{model_file}"\nparallel = 8\n'
    )
    with started_daemon(short_folder, model_dirs=(), config=config) as daemon:
        daemon.wait_for_engines()
        first = served(daemon, "m")
        died = deaths(daemon)
    with started_daemon(short_folder, model_dirs=(), config=config) as daemon:
        daemon.wait_for_engines()
        second = served(daemon, "m")
        died_again = deaths(daemon)

    assert died
    assert "cannot be had, though free" in died[-1]
    assert first["context"] < 8192
    assert second["context"] == first["context"]
    assert died_again == died
