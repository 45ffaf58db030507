"""The real engine behind a door that can be shut: what callers see while it cannot start."""

import os
import signal
from pathlib import Path

import httpx

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import packaged_engine
from tests.fakes.waiting import until

WITHIN_S = 60.0
LOOK_S = 0.1  # cadence of asking again


def shuttable_engine(folder: Path) -> tuple[Path, Path]:
    """The packaged engine, and the file that keeps it from starting while it is there."""
    packaged = packaged_engine()
    assert packaged is not None
    wrapper, shut = folder / "llama-server", folder / "shut"
    wrapper.write_text(
        f'#!/bin/sh\nif [ -e "{shut}" ]; then echo "the door is shut" >&2; exit 7; fi\n'
        f'exec "{packaged.path}" "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper, shut


def asked(daemon: StartedDaemon) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    return httpx.post(
        f"{daemon.base}/v1/chat/completions", json=body, timeout=WITHIN_S, trust_env=False
    )


def test_a_breaker_that_opened_lets_one_caller_try_and_closes_with_an_answer(
    tmp_path: Path, short_folder: Path, model_dir: Path
) -> None:
    engine, shut = shuttable_engine(tmp_path)
    config = (
        f'[backends.shuttable]\npath = "{engine}"\n[engine]\norder = ["shuttable"]\n'
        f'[fleet]\nrestart_limit = 2\nrestart_cooldown = "1s"\n'
        f'[[model]]\nname = "m"\npath = "{next(model_dir.glob("*.gguf"))}"\ncontext = 256\n'
    )
    with started_daemon(short_folder, model_dirs=(), config=config) as daemon:
        daemon.wait_for_engines()
        shut.touch()

        refused = asked(daemon)

        assert refused.status_code == 503
        assert "exit code 7" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        shut.unlink()
        until(
            lambda: asked(daemon).status_code == 200,
            within_s=WITHIN_S,
            told=lambda: daemon.log()[-4000:],
        )
        (instance,) = daemon.status()["instances"]
        os.kill(instance["pid"], signal.SIGKILL)
        assert asked(daemon).status_code == 200
