"""Other people's clients of Ollama, unchanged, against a daemon with the quickstart's model.

Run by `make clients`, which gives them an environment of their own. A line for each client and
check; exits 1 where one fails. Writes only into a temporary folder.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.started_daemon import DaemonTrouble, StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir
from tests.fakes.chat_templates import HERMES, with_template

ROOT = Path(__file__).parents[1]
CLIENTS = ("llm", "langchain", "litellm")
LIMIT_S = 300.0
_QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks for the newest prices
}


def main(python: str) -> None:
    """Run all checks with `python`, or say in a sentence why not, and exit 1."""
    model_dir = quickstart_model_dir()
    if model_dir is None:
        sys.exit("clients: the quickstart model is not installed: make clients installs it")
    try:
        with tempfile.TemporaryDirectory(prefix="ios-", dir="/tmp") as folder:
            failed = _checked(Path(folder), model_dir, python)
    except DaemonTrouble as exc:
        sys.exit(f"clients: {exc}")
    if failed:
        sys.exit(f"clients: failed: {', '.join(failed)}")


def _checked(folder: Path, model_dir: Path, python: str) -> list[str]:
    """The clients that failed."""
    (model,) = model_dir.glob("*.gguf")
    models = folder / "models"
    models.mkdir()
    with_template(model, HERMES, models / "hermes.gguf")
    with started_daemon(folder, model_dirs=[model_dir, models]) as daemon:
        daemon.wait_for_engines()
        return [client for client in CLIENTS if not _passes(client, daemon, python)]


def _passes(client: str, daemon: StartedDaemon, python: str) -> bool:
    argv = [python, "-m", f"tests.clients.python.{client}_checks", daemon.base]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=_environ(daemon, os.environ), timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"FAILED {client}: not done within {LIMIT_S:.0f} s", flush=True)
        return False
    return done.returncode == 0


def _environ(daemon: StartedDaemon, ours: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the user's own settings, and a home that is gone afterwards."""
    home = daemon.folder / "home"
    home.mkdir(exist_ok=True)
    places = {"HOME": str(home), "LLM_USER_PATH": str(home / "llm"), "PATH": ours["PATH"]}
    return {**_QUIET, **places, "OLLAMA_HOST": daemon.base}


if __name__ == "__main__":
    main(sys.argv[1])
