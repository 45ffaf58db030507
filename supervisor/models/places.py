"""Where other programs of this machine keep models: which program, and its folder. Pure."""

import os.path
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct


class Program(Enum):
    """Who keeps models there, which says how they lie and what they are called."""

    OLLAMA = "ollama"
    HUGGING_FACE = "huggingface"
    LLAMA_CPP = "llama.cpp"
    LM_STUDIO = "lmstudio"


class Place(Struct, frozen=True):
    """A folder of another program, which is only read, and need not be there."""

    program: Program
    folder: str


def places_of(
    program: Program, environ: Mapping[str, str], *, home: str, system: str
) -> tuple[Place, ...]:
    """Where that program keeps models by its own rules; a folder that does not count is ""."""
    folders = _FOLDERS[program](environ, home, system)
    return tuple(Place(program, os.path.normpath(each)) for each in folders if each)


def _ollama(environ: Mapping[str, str], home: str, system: str) -> tuple[str, ...]:
    told = environ.get("OLLAMA_MODELS", "").strip()
    if told:
        return (_absolute(told, home),)
    service = "/usr/share/ollama/.ollama/models" if system == "linux" else ""
    return (os.path.join(home, ".ollama", "models"), service)


def _hugging_face(environ: Mapping[str, str], home: str, system: str) -> tuple[str, ...]:
    """As huggingface_hub (constants.py)."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if told := environ.get(variable, "").strip():
            return (_absolute(told, home),)
    if told := environ.get("HF_HOME", "").strip():
        return (os.path.join(_absolute(told, home), "hub"),)
    return (os.path.join(_cache(environ, home), "huggingface", "hub"),)


def _llama_cpp(environ: Mapping[str, str], home: str, system: str) -> tuple[str, ...]:
    """As llama.cpp's fs_get_cache_directory (common/common.cpp)."""
    if told := environ.get("LLAMA_CACHE", "").strip():
        return (_absolute(told, home),)
    if system == "darwin":
        return (os.path.join(home, "Library", "Caches", "llama.cpp"),)
    return (os.path.join(_cache(environ, home), "llama.cpp"),)


def _lm_studio(environ: Mapping[str, str], home: str, system: str) -> tuple[str, ...]:
    """Of now, and of releases before 0.3.6."""
    return (
        os.path.join(home, ".lmstudio", "models"),
        os.path.join(home, ".cache", "lm-studio", "models"),
    )


_FOLDERS = {
    Program.OLLAMA: _ollama,
    Program.HUGGING_FACE: _hugging_face,
    Program.LLAMA_CPP: _llama_cpp,
    Program.LM_STUDIO: _lm_studio,
}


def _cache(environ: Mapping[str, str], home: str) -> str:
    told = environ.get("XDG_CACHE_HOME", "")
    return told if os.path.isabs(told) else os.path.join(home, ".cache")


def _absolute(text: str, home: str) -> str:
    """A path of the environment; a relative one means nothing to a daemon, and is none."""
    path = home + text[1:] if text == "~" or text.startswith("~/") else text
    return path if os.path.isabs(path) else ""
