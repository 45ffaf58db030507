"""Ollama's `options`, of a request or of a model's maker, as llama-server's sampler members.

Every dialect's: a maker's parameters hold however the model is asked. (Ollama's api/types.go,
DefaultOptions.)
"""

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from msgspec import Struct

from planners.recipe import Recipe
from proxy.engine_limits import MAX_WINDOW
from proxy.errors import BadOption

INT32 = 2**31 - 1


class Options(Struct, frozen=True):
    """What a request's options come to."""

    sampling: tuple[tuple[str, object], ...]
    """llama-server's names and values; both of its completion routes understand them."""
    n_ctx: int | None
    """Tokens asked for, prompt and reply together; None leaves it to us."""
    n_keep: int
    """Tokens that stay at a prompt's beginning where the prompt may be cut."""


class _Sampler(Struct, frozen=True):
    kind: type[int] | type[float]
    name: str
    default: float


# Ollama always sends every one of these, so llama.cpp's own defaults never show (min_p 0.05).
_SAMPLERS = {
    "temperature": _Sampler(float, "temperature", 0.8),
    "top_k": _Sampler(int, "top_k", 40),
    "top_p": _Sampler(float, "top_p", 0.9),
    "min_p": _Sampler(float, "min_p", 0.0),
    "typical_p": _Sampler(float, "typical_p", 1.0),
    "repeat_last_n": _Sampler(int, "repeat_last_n", 64),
    "repeat_penalty": _Sampler(float, "repeat_penalty", 1.0),
    "presence_penalty": _Sampler(float, "presence_penalty", 0.0),
    "frequency_penalty": _Sampler(float, "frequency_penalty", 0.0),
    "seed": _Sampler(int, "seed", -1),
    "num_keep": _Sampler(int, "n_keep", 4),
    "num_predict": _Sampler(int, "n_predict", -1),
}
_LAUNCH_NUMBERS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict")
_LAUNCH_FLAGS = ("use_mmap",)
OPTIONS = {
    **{name: "float32" if told.kind is float else "integer" for name, told in _SAMPLERS.items()},
    **dict.fromkeys(_LAUNCH_NUMBERS, "integer"),
    **dict.fromkeys(_LAUNCH_FLAGS, "boolean"),
    "stop": "array",
}
"""All that are read, and of which type."""


def members_of(recipe: Recipe) -> dict[str, object]:
    """A recipe's parameters as llama-server's members: those that it names. Raises BadOption."""
    told = sampling_of(recipe)
    named = {_SAMPLERS[name].name for name in told if name in _SAMPLERS} | {"stop"}
    return {name: value for name, value in read_options(told).sampling if name in named}


def sampling_of(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe's parameters a request is asked with; the rest is said at the launch."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in recipe.parameters
        if key in _SAMPLERS or key == "stop"
    }


def read_options(told: Mapping[str, Any]) -> Options:
    """The options as the child takes them; unknown ones are ignored. Raises BadOption."""
    values = {key: value for key, value in told.items() if value is not None}
    for name in _LAUNCH_FLAGS:
        if not isinstance(values.get(name, False), bool):
            _refuse(name, "boolean")
    launch = {name: _whole(name, values[name]) for name in _LAUNCH_NUMBERS if name in values}
    sampling: list[tuple[str, object]] = [
        (sampler.name, _number(name, values.get(name, sampler.default), sampler.kind))
        for name, sampler in _SAMPLERS.items()
    ]
    stop = _stop(values.get("stop", []))
    if stop:
        sampling.append(("stop", stop))
    n_ctx = launch.get("num_ctx", 0)
    n_keep = max(0, _whole("num_keep", values.get("num_keep", _SAMPLERS["num_keep"].default)))
    return Options(tuple(sampling), n_ctx=n_ctx if n_ctx > 0 else None, n_keep=n_keep)


def _number(name: str, value: object, kind: type[int] | type[float]) -> float:
    if kind is float:
        return float(_finite(name, value, "float32"))
    whole = _whole(name, value)
    if name == "seed":
        return whole & 0xFFFFFFFF  # the child's seed is 32 bits; -1 becomes its "random"
    least = -1 if name == "num_predict" else -INT32
    most = MAX_WINDOW if name == "repeat_last_n" else INT32
    return max(least, min(whole, most))


def _whole(name: str, value: object) -> int:
    return int(_finite(name, value, "integer"))


def _finite(name: str, value: object, kind: str) -> float:
    """`value`, an int or a float that a float can hold: JSON can write larger ones, and 1e999."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, kind)
    if not -sys.float_info.max <= value <= sys.float_info.max:
        _refuse(name, kind)
    return value


def _stop(value: object) -> list[str]:
    if not isinstance(value, list):
        _refuse("stop", "array")
    if any(not isinstance(text, str) for text in value):
        raise BadOption('option "stop" must be of an array of strings', param="stop")
    return value


def _refuse(name: str, kind: str) -> NoReturn:
    raise BadOption(f'option "{name}" must be of type {kind}', param=name)
