"""What is measured: relays before a child each, and what their processes cost."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.relay.cores import children

READY_S = 10.0
LOOK_S = 0.02

_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    client_max_body_size 64m; keepalive_requests 1000000;
    upstream child {{ server unix:{child}; keepalive 256; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://child; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off; proxy_read_timeout 600s;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to a child."""

    name: str
    address: str
    """A port of 127.0.0.1, or the path of a Unix socket."""
    pids: tuple[int, ...] = ()
    """Whose CPU counts; none where there is nothing between."""


@dataclass(frozen=True, slots=True)
class Child:
    """What relays stand before."""

    path: Path
    pid: int


@contextmanager
def upstream(program: Path, path: Path) -> Iterator[Child]:
    """A child of its own, on a Unix socket at `path`."""
    with subprocess.Popen([program, path]) as process:
        try:
            _wait_for(path)
            path.chmod(0o777)  # nginx' worker is another user's where root starts it
            yield Child(path, process.pid)
        finally:
            process.kill()


def program_of_nginx() -> str | None:
    """Where it is installed; root's folders too, which are not in everybody's path."""
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@contextmanager
def nginx(folder: Path, child: Path) -> Iterator[Peer]:
    """One worker before the child at `child`, unbuffered and kept alive, as relays are set up."""
    program = program_of_nginx()
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    folder.mkdir()
    folder.chmod(0o755)
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, child=child, port=port))
    with subprocess.Popen([program, "-c", config, "-e", folder / "nginx.log"]) as process:
        try:
            _wait_for(("127.0.0.1", port))
            while not (workers := children(process.pid)):
                time.sleep(LOOK_S)  # the socket is there before whoever serves it
            yield Peer("nginx", str(port), workers)
        finally:
            process.terminate()


@contextmanager
def floor(child: Path) -> Iterator[Peer]:
    """The least that a relay in Python costs (bench.relay.floor), before the child at `child`."""
    argv = [sys.executable, "-m", "bench.relay.floor", str(child)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Peer("floor", process.stdout.readline().decode().strip(), (process.pid,))
        finally:
            process.terminate()


def _wait_for(address: Path | tuple[str, int]) -> None:
    until_s = time.monotonic() + READY_S
    while True:
        family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
        with socket.socket(family) as asked:
            try:
                asked.connect(str(address) if isinstance(address, Path) else address)
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until_s:
                    raise
        time.sleep(LOOK_S)
