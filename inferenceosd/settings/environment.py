"""Settings in environment variables: INFERENCEOSD_* for every key, OLLAMA_* as Ollama means them.

INFERENCEOSD_SECTION_KEY sets [section] key; a mistake there is an error. OLLAMA_* follow another
program's rules: what Ollama could not read is a warning, and the layer below stays in force.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.file import AnyKey, Setting, read_setting
from inferenceosd.settings.kinds import CACHE_TYPES, MAX_DURATION_S, MAX_PORT, Folders, Listen
from planners.durations import FOREVER_S, BadDuration, parse_duration

PREFIX = "INFERENCEOSD_"
CONFIG_VARIABLE = "INFERENCEOSD_CONFIG"
API_KEY_VARIABLE = "INFERENCEOSD_API_KEY"  # inferenceosctl's alone
_NO_SETTINGS = (CONFIG_VARIABLE, API_KEY_VARIABLE)

# Kubernetes sets these for a service that is called inferenceosd; they are no settings of ours.
_SERVICE_LINK = re.compile(r"INFERENCEOSD_(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_[0-9]+_.*)")

MAX_UINT = (1 << 62) - 1  # Ollama takes 64 bits; the sum of two such sizes must still make sense
NO_TIMEOUT_S = 365 * 24 * 3600.0  # Ollama's "infinite": timers of the event loop take no infinity


def variable(key: AnyKey) -> str:
    """The variable that sets `key`."""
    return PREFIX + key.name.upper().replace(".", "_")


def own_settings(
    environ: Mapping[str, str], *, keys: Iterable[AnyKey], folders: Folders
) -> dict[str, Setting]:
    """What INFERENCEOSD_* variables set; empty ones are as if unset. Raises ConfigError."""
    by_variable = {variable(key): key for key in keys}
    found: dict[str, Setting] = {}
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or name in _NO_SETTINGS or not text.strip():
            continue
        if (key := by_variable.get(name)) is not None:
            value = key.kind.from_text(text.strip())
            found[key.name] = Setting(read_setting(key, value, source=name, folders=folders), name)
        elif not _SERVICE_LINK.fullmatch(name):
            from difflib import get_close_matches  # late: seldom wanted, and not small

            near = get_close_matches(name, by_variable, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown variable{hint}", source=name)
    return found


class _Garbage(Exception):
    """A value that Ollama could not read either; `instead` is what it then uses, if no default."""

    def __init__(self, why: str, *, instead: object = None) -> None:
        self.instead = instead
        super().__init__(why)


def ollama_settings(
    environ: Mapping[str, str], folders: Folders
) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """What OLLAMA_* variables set, as Ollama reads them (envconfig/config.go).

    The second part is a warning for each that it could not read.
    """
    settings: dict[str, Setting] = {}
    warnings: list[str] = []
    for name, (keys, read) in _OLLAMA.items():
        text = environ.get(name, "").strip().strip("\"'")
        if not text:
            continue
        value: object
        try:
            value = read(text, folders)
        except _Garbage as exc:
            warnings.append(f"{name}={text[:80]!r}: {exc}")
            value = exc.instead
            if value is None:
                continue
        settings |= {key: Setting(value, name) for key in keys}
    return settings, tuple(warnings)


def _host(text: str, _: Folders) -> Listen:
    """[scheme://]host[:port][/path]; the scheme only tells the port where none is written."""
    scheme, colon, rest = text.partition("://")
    usual = {"http": 80, "https": 443}.get(scheme, 11434) if colon else 11434
    place = (rest if colon else text).partition("/")[0]
    host, port_text = _split_host_port(place)
    if port_text is None:
        return Listen(host or "127.0.0.1", usual)
    if not re.fullmatch(r"\+?[0-9]{1,10}", port_text) or int(port_text) > MAX_PORT:
        why = f"{port_text!r} is no port; {usual} is used"
        raise _Garbage(why, instead=Listen(host, usual))
    return Listen(host, int(port_text))


def _split_host_port(place: str) -> tuple[str, str | None]:
    """Host and port as Go's net.SplitHostPort has them; the port is None where it would fail."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\](?::([^:]*))?", place):
        return bracketed[1], bracketed[2]
    host, colon, port = place.partition(":")
    if colon and ":" not in port:
        return host, port
    try:
        return str(ip_address(place.strip("[]"))), None
    except ValueError:
        return place, None


def _uint(text: str, _: Folders) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > MAX_UINT:
        raise _Garbage("not an unsigned integer; the default is used")
    return int(text)


def _uint_or_auto(text: str, folders: Folders) -> int | None:
    """Zero leaves it to Ollama, here to placement."""
    return _uint(text, folders) or None


def _duration(text: str, _: Folders) -> float:
    """A Go duration or whole seconds; negative is for ever."""
    whole = re.fullmatch(r"[+-]?[0-9]{1,18}", text)
    try:
        seconds = parse_duration(int(text) if whole else text)
    except (BadDuration, OverflowError) as exc:
        raise _Garbage("neither a duration nor whole seconds; the default is used") from exc
    return FOREVER_S if seconds > MAX_DURATION_S else seconds


def _stall(text: str, folders: Folders) -> float:
    """A load's time-out: zero is for ever too."""
    seconds = _duration(text, folders)
    return seconds if 0 < seconds < NO_TIMEOUT_S else NO_TIMEOUT_S


def _cache_type(text: str, _: Folders) -> str:
    if text.lower() not in CACHE_TYPES:
        raise _Garbage("no type that a KV cache can have; the default is used")
    return text.lower()


def _origins(text: str, _: Folders) -> tuple[str, ...]:
    return tuple(origin.strip() for origin in text.split(",") if origin.strip())


def _folder(text: str, folders: Folders) -> tuple[str, ...]:
    return (folders.absolute(text),)


_OLLAMA: dict[str, tuple[tuple[str, ...], Callable[[str, Folders], object]]] = {
    "OLLAMA_HOST": (("server.listen",), _host),
    "OLLAMA_ORIGINS": (("server.origins",), _origins),
    "OLLAMA_MODELS": (("models.dirs",), _folder),
    "OLLAMA_KEEP_ALIVE": (("models.keep_alive",), _duration),
    "OLLAMA_CONTEXT_LENGTH": (("models.context",), _uint_or_auto),
    "OLLAMA_NUM_PARALLEL": (("models.parallel",), _uint_or_auto),
    "OLLAMA_KV_CACHE_TYPE": (("models.cache_type_k", "models.cache_type_v"), _cache_type),
    "OLLAMA_MAX_LOADED_MODELS": (("models.max_loaded",), _uint_or_auto),
    "OLLAMA_MAX_QUEUE": (("models.max_waiting",), _uint),
    "OLLAMA_LOAD_TIMEOUT": (("fleet.load_timeout",), _stall),
    "OLLAMA_GPU_OVERHEAD": (("ollama.gpu_overhead",), _uint),
}
"""The variable → the keys it sets, and how Ollama reads it."""

OLLAMA_VARIABLES: Mapping[str, tuple[str, ...]] = {
    name: keys for name, (keys, _) in _OLLAMA.items()
}
"""The variables of Ollama that are understood → the keys they set."""
