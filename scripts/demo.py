"""The whole job once: a daemon on a free port, two questions, its status, and nothing left behind.

Run by `make demo`. Writes only into a temporary folder.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psutil

from inferenceosd.platform_folders import state_folder, this_platform
from scripts.started_daemon import DaemonTrouble, StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir

ANSWER_S = 60.0
SKY = "Why is the sky blue? Answer in one sentence."
COLOURS = "Name three colours of the rainbow."
BUILD = "scripts/build_backends.sh cpu"


def main() -> None:
    """Show it all, or say in a sentence why not, and exit 1."""
    model_dir = quickstart_model_dir()
    if model_dir is None:
        _fail("the quickstart model is not installed: make clean, then make demo again")
    try:
        with tempfile.TemporaryDirectory(prefix="inferenceosd-", dir=_short_temp()) as folder:
            _show_in(Path(folder), model_dir)
    except DaemonTrouble as exc:
        _fail(str(exc))
    _say("\nstopped: no process is left running, the temporary folder is gone")


def _show_in(folder: Path, model_dir: Path) -> None:
    with started_daemon(folder, model_dirs=[model_dir], config=_own_build()) as daemon:
        engine = _engine(daemon.wait_for_engines())
        model = _first_model(daemon)
        _say(f"engine   {engine['path']} ({engine['backend']}, from {engine['source']})")
        _say(f"daemon   {daemon.base}, pid {daemon.process.pid}\nmodel    {model}")
        _ask_openai(daemon, model)
        _ask_ollama(daemon, model)
        _say("\n$ inferenceosctl status")
        told = daemon.ctl("status")
        _say(told.stdout or told.stderr)
        children = psutil.Process(daemon.process.pid).children(recursive=True)
    if left := [child.pid for child in children if child.is_running()]:
        _fail(f"processes {left} are still running")


def _short_temp() -> str | None:
    """None, the usual folder; /tmp where its path leaves no room for the names of Unix sockets."""
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 40 else None


def _own_build() -> str:
    """Configuration that offers the engine scripts/build_backends.sh made, where there is one."""
    state = Path(state_folder(os.environ, this_platform()))
    server = state / "engines" / "cpu" / "current" / "bin" / "llama-server"
    return f"[backends.built]\npath = {json.dumps(str(server))}\n" if server.exists() else ""


def _engine(status: Any) -> Any:
    """The engine that will be used; the end of the demo where none runs."""
    accepted = [tried for tried in status["engines"] if tried["refused"] is None]
    if not accepted:
        reasons = "".join(f"\n  {t['path']}: {t['refused']}" for t in status["engines"])
        reasons = reasons or " none was found"
        _fail(f"no llama-server runs on this machine:{reasons}\nbuild one for it: {BUILD}")
    return accepted[0]


def _first_model(daemon: StartedDaemon) -> str:
    reply = httpx.get(f"{daemon.base}/v1/models", trust_env=False).raise_for_status()
    models = reply.json()["data"]
    if not models:
        _fail("the daemon found no model")
    return str(models[0]["id"])


def _ask_openai(daemon: StartedDaemon, model: str) -> None:
    body = {"model": model, "stream": True, "max_tokens": 60, "temperature": 0}
    with _answer(daemon, "/v1/chat/completions", SKY, body) as lines:
        for line in lines:
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    _print(choice["delta"].get("content") or "")
    _say("")


def _ask_ollama(daemon: StartedDaemon, model: str) -> None:
    body = {"model": model, "options": {"num_predict": 60, "temperature": 0}}
    with _answer(daemon, "/api/chat", COLOURS, body) as lines:
        for line in lines:
            _print(json.loads(line)["message"]["content"])
    _say("")


@contextmanager
def _answer(
    daemon: StartedDaemon, path: str, question: str, body: dict[str, Any]
) -> Iterator[Iterator[str]]:
    """The lines of a streamed reply, as they arrive."""
    _say(f"\nPOST {path}   {question}")
    asked = {**body, "messages": [{"role": "user", "content": question}]}
    url = daemon.base + path
    # Without the environment's HTTP proxies, which cannot reach this machine's loopback.
    with httpx.stream("POST", url, json=asked, timeout=ANSWER_S, trust_env=False) as reply:
        if reply.is_error:
            reply.read()
            _fail(f"{path} answered {reply.status_code}: {reply.text}")
        yield reply.iter_lines()


def _print(text: str) -> None:
    print(text, end="", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(sentence: str) -> NoReturn:
    sys.exit(f"demo: {sentence}")


if __name__ == "__main__":
    main()
