"""Tries a fresh llama-server build and writes manifest.json beside it, or checks one that is there.

write FOLDER …   0 and a manifest where the build decodes here; 1 and the reason where not
check FOLDER     0 where every file is as the manifest says
Standard library only: it also runs where the daemon is not installed.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.engines.tinymodel import N_CTX, tiny_model

SCHEMA = 1
NAME = "manifest.json"
ASK_S = 60.0  # --version and --list-devices: the last loads every driver
DECODE_S = 300.0  # start to answer: 0.2 s on an idle machine, a minute emulated on a busy one
POLL_S = 0.05  # cadence of looking whether the tiny model is loaded
LETTERS = "root ::= [a-z]*"  # random weights would make bytes that no text has
_VERSION = re.compile(r"^version: (\S.*?)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"^\s+(\w+): (.*) \(\d+ MiB, \d+ MiB free\)\s*$", re.MULTILINE)
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


class Unfit(Exception):
    """A build that is of no use on this machine, or is not what its manifest says."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, or 1 with one line on stderr."""
    told = _parser().parse_args(arguments)
    try:
        if told.command == "check":
            check(Path(told.folder))
        else:
            write(Path(told.folder), told)
    except (Unfit, OSError) as exc:
        print(f"engine_manifest: {exc}", file=sys.stderr)
        return 1
    return 0


def check(folder: Path) -> None:
    """Raise Unfit where a file is missing or another than it was; OSError where unreadable."""
    try:
        manifest = json.loads((folder / NAME).read_text())
        files = dict(manifest["files"])
    except (ValueError, KeyError, TypeError) as exc:
        raise Unfit(f"{folder / NAME} is no manifest") from exc
    for name, digest in files.items():
        if not (folder / name).is_file() or _sha256(folder / name) != digest:
            raise Unfit(f"{folder / name} is not what was built")


def write(folder: Path, told: argparse.Namespace) -> None:
    """Try the build in `folder` and describe it there. Raises Unfit."""
    manifest = {
        "schema": SCHEMA,
        "backend": told.backend,
        "build_id": told.build_id,
        "commit": told.commit,
        "source": told.source if told.source != "git" else f"git {told.repository}",
        "options": told.option,
        "toolchain": told.toolchain.splitlines(),
        "cmake": told.cmake,
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "needs_glibc": needed_glibc(folder),
        "found": tried(folder / "bin" / "llama-server"),
        "files": {name: _sha256(folder / name) for name in _files(folder)},
    }
    fresh = folder / f".{NAME}"
    fresh.write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(fresh, folder / NAME)


def tried(binary: Path) -> dict[str, Any]:
    """What the program shows on this machine: version, devices, libraries. Raises Unfit."""
    said = _asked(binary, "--version")
    version = _VERSION.search(said)
    devices = _DEVICE.findall(_asked(binary, "--list-devices"))
    return {
        "version": version[1] if version else "unknown",
        "devices": [f"{name}: {description}" for name, description in devices],
        "backends_loaded": decoded(binary),
        "cpu": _cpu_name(),
    }


def decoded(binary: Path) -> list[str]:
    """ggml's libraries in the process once it has decoded a tiny model. Raises Unfit.

    Neither of the questions above proves anything: a program for another CPU answers both.
    """
    with TemporaryDirectory(prefix="ios-trial-") as name, _serving(binary, Path(name)) as child:
        give_up_s = time.monotonic() + DECODE_S
        while child.poll() is None and time.monotonic() < give_up_s:
            with suppress(OSError, HTTPException):  # it does not listen yet, or died of it
                if _has_answered(f"{name}/s.sock"):
                    return _ggml_libraries(child.pid)
            time.sleep(POLL_S)
        raise Unfit(_why(child.poll(), doing="its first decode"))


@contextmanager
def _serving(binary: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "tiny.gguf").write_bytes(tiny_model())
    argv = [str(binary), "--model", str(folder / "tiny.gguf"), "--host", str(folder / "s.sock")]
    argv += ["--ctx-size", str(N_CTX), "--threads", "1", "--parallel", "1", "--device", "none"]
    child = subprocess.Popen(
        [*argv, "--fit", "off", "--cache-ram", "0"],
        cwd=binary.parent,  # it loads libraries that lie where it stands, as beside it
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=DECODE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _has_answered(path: str) -> bool:
    """Whether it decoded; False while it loads. Raises OSError, HTTPException, Unfit."""
    talk = _UnixConnection(path)
    try:
        question = json.dumps({"prompt": "Hi", "n_predict": 2, "grammar": LETTERS})
        talk.request("POST", "/completion", question, {"Content-Type": "application/json"})
        reply = talk.getresponse()
        body = reply.read()
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        if reply.status != HTTPStatus.OK or json.loads(body)["tokens_predicted"] < 1:
            raise Unfit(f"it answered its first prompt with {body[:200].decode(errors='replace')}")
        return True
    finally:
        talk.close()


def _asked(binary: Path, flag: str) -> str:
    try:
        told = subprocess.run(
            [str(binary), flag],
            cwd=binary.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ASK_S,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise Unfit(f"it gave no answer to {flag} within {ASK_S:g} s") from exc
    if told.returncode:
        last = (told.stdout.strip() or "no message").splitlines()[-1]
        raise Unfit(f"{_why(told.returncode, doing=flag)}: {last}")
    return told.stdout


def _why(returncode: int | None, *, doing: str) -> str:
    if returncode is None:
        return f"it was not done with {doing} within {DECODE_S:g} s"
    if returncode in (-signal.SIGILL, 128 + signal.SIGILL):
        return f"it is for another CPU: SIGILL on {doing}"
    return f"it ended with {returncode} on {doing}"


def _ggml_libraries(pid: int) -> list[str]:
    """By the kernel's own list of what is mapped; [] where there is none (macOS)."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    names = {line.rsplit("/", 1)[-1] for line in lines if "/" in line}
    return sorted(name for name in names if name.startswith("libggml-"))


def needed_glibc(folder: Path) -> str | None:
    """The newest version of glibc that a file asks for, "2.34"; None where none does."""
    found = [
        (int(match[1]), int(match[2]))
        for name in _files(folder)
        for match in _GLIBC.finditer((folder / name).read_bytes())
    ]
    return "{}.{}".format(*max(found)) if found else None


def _files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in paths if not path.name.endswith(NAME))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("write", "check"))
    parser.add_argument("folder")
    for name in ("backend", "build-id", "commit", "source", "repository", "toolchain", "cmake"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--option", action="append", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
