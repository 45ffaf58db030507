"""Real ggml-rpc-servers on this machine: devices of "another" one."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.engines.quickstart import packaged_engine

START_S = 20.0


@dataclass(frozen=True, slots=True)
class RpcServer:
    """One running server."""

    address: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()


@contextmanager
def rpc_server(folder: Path | None = None, *, port: int | None = None) -> Iterator[RpcServer]:
    """The quickstart's server on a port, else a free one; the processor is its one device.

    `folder`: where another engine's server lies.
    """
    packaged = packaged_engine()
    assert packaged is not None, "the quickstart's engine is missing: make test installs it"
    port = port or free_port()
    program = (folder or Path(packaged.path).parent) / "ggml-rpc-server"
    argv = (str(program), "-H", "127.0.0.1", "-p", str(port))
    env = {"GGML_VK_VISIBLE_DEVICES": "", **dict(packaged.env)}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield RpcServer(f"127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the ggml-rpc-server ended"
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("the ggml-rpc-server does not listen")
