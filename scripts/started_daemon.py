"""A real daemon on a free port, in a folder of its own: for the demo, benchmarks and tests."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_S = 60.0  # engines are tried meanwhile; a Vulkan driver may have to compile its shaders
STOP_S = 15.0
LOOK_S = 0.02  # cadence of looking whether it is ready


class DaemonTrouble(Exception):
    """The daemon ended, or did not become ready, or would not stop."""


@dataclass(frozen=True, slots=True)
class StartedDaemon:
    """A running daemon and where to find it."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def admin_socket(self) -> Path:
        """Where inferenceosctl finds it."""
        return self.folder / "admin.sock"

    @property
    def listen(self) -> str:
        """HOST:PORT of its public door."""
        return str(self.status()["daemon"]["listen"]).partition(",")[0]

    @property
    def base(self) -> str:
        """Its public address as a URL."""
        return f"http://{self.listen}"

    def log(self) -> str:
        """All it has logged so far."""
        return (self.folder / "daemon.log").read_text(errors="replace")

    def status(self) -> Any:
        """What `inferenceosctl status --json` prints; an httpx.TransportError until it is up."""
        transport = httpx.HTTPTransport(uds=str(self.admin_socket))
        with httpx.Client(transport=transport, timeout=10) as client:
            return client.get("http://admin/status").raise_for_status().json()

    def ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run inferenceosctl against it."""
        argv = [_program("inferenceosctl"), "--socket", str(self.admin_socket), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    def wait_until_open(self) -> None:
        """Until it answers, whether or not it has tried its engines. Raises DaemonTrouble."""
        deadline_s = time.monotonic() + START_S
        while not _is_answered(self.admin_socket):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise DaemonTrouble(f"the daemon does not answer:\n{self.log()}")
            time.sleep(LOOK_S)

    def wait_for_engines(self) -> Any:
        """The status once every engine was tried. Raises DaemonTrouble."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise DaemonTrouble(f"the daemon ended:\n{self.log()}")
            if _is_answered(self.admin_socket):
                told = self.status()
                if told["daemon"]["has_tried_engines"]:
                    return told
            time.sleep(LOOK_S)
        raise DaemonTrouble(f"the daemon was not ready within {START_S:.0f} s:\n{self.log()}")


@contextmanager
def started_daemon(
    folder: Path,
    *,
    model_dirs: Sequence[Path],
    config: str = "",
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[StartedDaemon]:
    """A daemon for as long as the block lasts; everything it writes lies in `folder`.

    The folder's path must be short, as Unix sockets lie in it. Raises DaemonTrouble at its end.
    """
    (folder / "config.toml").write_text(config)
    argv = [
        *(_program("inferenceosd"), "--config", str(folder / "config.toml")),
        *("--listen", "127.0.0.1:0", "--admin-socket", str(folder / "admin.sock")),
        *("--state-dir", str(folder / "state")),
        *(part for path in model_dirs for part in ("--model-dir", str(path))),
        *options,
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("INFERENCEOSD_", "OLLAMA_"))}
    own = {
        "INFERENCEOSD_RUNTIME_DIR": str(folder / "run"),
        "INFERENCEOSD_MODELS_FIND": "none",  # what else is on this machine changes no result
    }
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(argv, env={**kept, **own, **(environ or {})}, stderr=log)
    try:
        yield StartedDaemon(process, folder)
    finally:
        _stop(process)


def _is_answered(path: Path) -> bool:
    """True where somebody listens. Without httpx: it leaks its socket where nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired as exc:
        process.kill()
        process.wait()
        raise DaemonTrouble(f"the daemon did not stop within {STOP_S:.0f} s: killed") from exc


def _program(name: str) -> str:
    """A console script of the environment that runs us."""
    return str(Path(sys.executable).with_name(name))
