"""The kinds of value a setting can have: TOML values and texts in, typed values out, or Refused.

A kind knows its type and what is allowed; it knows no key, no default and no file.
"""

import math
import os.path
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from planners.durations import BadDuration, format_duration, parse_duration
from planners.settings import MAX_SLOTS
from planners.sizes import GIB, MIB, BadSize, parse_size

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Keys and array indices from the top of a file: ("model", 2, "aliases", 0)."""

MAX_TEXT = 4096  # PATH_MAX of Linux: no text setting needs more
MAX_ITEMS = 1000
MAX_PORT = 65535
MAX_DURATION_S = 100 * 365 * 24 * 3600.0  # beyond it a date of expiry cannot be told
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What `--cache-type-k` and `-v` take (llama.cpp common/arg.cpp, b11434)."""


class Refused(Exception):
    """A value that its kind does not take; `path` leads to it from the value that was read."""

    def __init__(
        self,
        problem: str,
        *,
        path: KeyPath = (),
        allowed: str | None = None,
        earlier: KeyPath | None = None,
    ) -> None:
        self.problem, self.path, self.allowed = problem, path, allowed
        self.earlier = earlier
        """Where the other half of a clash stands, from the top of the same value."""
        super().__init__(problem)

    def below(self, *parents: str | int) -> "Refused":
        """The same refusal, seen from further up."""
        earlier = None if self.earlier is None else (*parents, *self.earlier)
        return Refused(
            self.problem, path=(*parents, *self.path), allowed=self.allowed, earlier=earlier
        )


class Folders(Struct, frozen=True):
    """What relative paths and `~` start from."""

    base: str
    home: str

    def absolute(self, text: str) -> str:
        """`text` as an absolute path without `..`."""
        if text == "~" or text.startswith("~/"):
            text = self.home + text[1:]
        return os.path.normpath(os.path.join(self.base, text))


class Listen(NamedTuple):
    """An address to listen on; host "" is every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Kind(Struct, Generic[T], frozen=True):
    """How values of one kind are read."""

    name: str
    """For the reference: "duration", "size", "list of text"."""
    allowed: str
    read: Callable[[object, Folders], T]
    """From a TOML value. Raises Refused."""
    from_text: Callable[[str], object] = str
    """An environment variable's text as the TOML value that was meant; else the text itself."""
    show: Callable[[T], str] = str
    """The value as one would write it in TOML."""


def _wrong_type(value: object, wanted: str) -> Refused:
    names: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        str: "text",
        list: "an array",
        dict: "a table",
    }
    found = names.get(type(value), "a date or time")
    return Refused(f"{found} where {wanted} belongs")


def _shown(value: object) -> str:
    """`value` as it can be told: short, and never an integer that str() refuses to print."""
    if isinstance(value, int) and abs(value) >= 1 << 62:
        return "a number beyond 64 bits"
    return f"{value!r:.80}"


def read_text(value: object, _: Folders) -> str:
    """Text without control characters, 1 to 4096 long."""
    if not isinstance(value, str):
        raise _wrong_type(value, "text")
    if not value.strip():
        raise Refused("an empty text")
    if len(value) > MAX_TEXT:
        raise Refused(f"{len(value)} characters, more than {MAX_TEXT}")
    if not value.isprintable():
        raise Refused(f"{value[:64]!r} holds characters that cannot be printed")
    return value


def read_path(value: object, folders: Folders) -> str:
    """An absolute path; relative ones start at the file's folder, `~` at home."""
    return folders.absolute(read_text(value, folders))


def read_flag(value: object, _: Folders) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise _wrong_type(value, "a boolean")
    return value


def read_size(value: object, _: Folders) -> int:
    """Bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong_type(value, "a size")
    try:
        size_bytes = value if isinstance(value, int) else parse_size(value)
    except BadSize as exc:
        raise Refused(f"{_shown(value)} is no size") from exc
    if not 0 <= size_bytes < 1 << 62:
        raise Refused(f"{_shown(value)} is out of range")
    return size_bytes


def read_duration(value: object, _: Folders) -> float:
    """Seconds; inf is for ever."""
    try:
        seconds = parse_duration(value)
    except (BadDuration, OverflowError) as exc:
        raise Refused(f"{_shown(value)} is no duration") from exc
    if MAX_DURATION_S < seconds < math.inf:
        raise Refused(f"{_shown(value)} is more than a century")
    return seconds


def read_listen(value: object, folders: Folders) -> Listen:
    """HOST:PORT, [IPv6]:PORT or :PORT."""
    text = read_text(value, folders).strip()
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or (":" in bare and bare == host) or re.search(r"[\s/\[\]]", bare):
        raise Refused(f"{_shown(text)} is no address")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise Refused(f"{_shown(port)} is no port")
    return Listen(bare, int(port))


def read_server(value: object, folders: Folders) -> str:
    """HOST:PORT of a server elsewhere; llama.cpp splits lists of them at commas."""
    listen = read_listen(value, folders)
    if not listen.host or not listen.port or "," in listen.host:
        raise Refused(f"{_shown(value)} is no address of a server")
    return str(listen)


def _number_or_text(text: str) -> object:
    """An integer where `text` is one, of a length that int() takes; else the text."""
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text) else text


def _boolean_or_text(text: str) -> object:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _show_duration(seconds: float) -> str:
    return "-1" if math.isinf(seconds) else f'"{format_duration(seconds)}"'


def _show_size(size_bytes: int) -> str:
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB")):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f'"{size_bytes // unit_bytes}{unit}"'
    return str(size_bytes)


def integer(least: int, most: int) -> Kind[int]:
    """Whole numbers from `least` to `most`."""

    def read(value: object, _: Folders) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(value, "an integer")
        if not least <= value <= most:
            raise Refused(f"{_shown(value)} is out of range")
        return value

    allowed = f"an integer from {least} to {most}"
    return Kind("integer", allowed, read, from_text=_number_or_text)


def finite_duration(least_s: float, most_s: float) -> Kind[float]:
    """Seconds from `least_s` to `most_s`."""

    def read(value: object, folders: Folders) -> float:
        seconds = read_duration(value, folders)
        if not least_s <= seconds <= most_s:
            raise Refused(f"{_shown(value)} is out of range")
        return seconds

    allowed = (
        'a duration such as "30s" or "5m", or a number of seconds,'
        f" from {format_duration(least_s)} to {format_duration(most_s)}"
    )
    return Kind("duration", allowed, read, _number_or_text, _show_duration)


def or_auto(kind: Kind[T]) -> Kind[T | None]:
    """What `kind` takes, or "auto", which is None."""

    def read(value: object, folders: Folders) -> T | None:
        return None if value == "auto" else kind.read(value, folders)

    def show(value: T | None) -> str:
        return '"auto"' if value is None else kind.show(value)

    return Kind(f'{kind.name} or "auto"', f'{kind.allowed}, or "auto"', read, kind.from_text, show)


def or_unset(kind: Kind[T]) -> Kind[T | None]:
    """What `kind` takes; None only where nothing is written."""

    def show(value: T | None) -> str:
        return "not set" if value is None else kind.show(value)

    return Kind(kind.name, kind.allowed, kind.read, kind.from_text, show)


def choice(*words: str) -> Kind[str]:
    """One of `words`, without case."""

    def read(value: object, folders: Folders) -> str:
        word = read_text(value, folders).strip().lower()
        if word not in words:
            raise Refused(f"{_shown(value)} is none of them")
        return word

    return Kind("text", " | ".join(_quoted(word) for word in words), read, show=_quoted)


def list_of(kind: Kind[T], *, separator: str = ",") -> Kind[tuple[T, ...]]:
    """An array of what `kind` takes; in the environment, joined by `separator`."""

    def read(value: object, folders: Folders) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise _wrong_type(value, "an array")
        if len(value) > MAX_ITEMS:
            raise Refused(f"{len(value)} items, more than {MAX_ITEMS}")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(kind.read(item, folders))
            except Refused as exc:
                raise exc.below(index) from exc
        return tuple(items)

    def split(text: str) -> object:
        return [kind.from_text(part.strip()) for part in text.split(separator) if part.strip()]

    def show(items: tuple[T, ...]) -> str:
        return "[" + ", ".join(kind.show(item) for item in items) + "]"

    return Kind(f"list of {kind.name}", f"an array; each item: {kind.allowed}", read, split, show)


def read_env(value: object, _: Folders) -> tuple[tuple[str, str], ...]:
    """Environment variables of a child, as written in a table of texts."""
    if not isinstance(value, dict):
        raise _wrong_type(value, "a table")
    table: Mapping[str, object] = value
    for name, text in table.items():
        if not isinstance(text, str) or "\0" in text or len(text) > MAX_TEXT:
            raise Refused("not a text that an environment can hold", path=(name,))
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refused(f"{name!r:.80} is no name of an environment variable", path=(name,))
    return tuple((name, str(text)) for name, text in table.items())


def inline_toml(text: str) -> object:
    """A TOML value written on one line, as variables of tables hold it; what is none stays text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


TEXT = Kind("text", "text, not empty", read_text, show=_quoted)
PATH = Kind("path", "a path, absolute or relative to this file's folder", read_path, show=_quoted)
PATHS = list_of(PATH, separator=os.pathsep)
TEXTS = list_of(TEXT)
FLAG = Kind("boolean", "true or false", read_flag, _boolean_or_text, lambda flag: str(flag).lower())
SIZE = Kind(
    "size",
    'a size such as "6GiB" or "512MiB", or a number of bytes',
    read_size,
    _number_or_text,
    _show_size,
)
DURATION = Kind(
    "duration",
    'a duration such as "5m" or "1h30m", a number of seconds, 0, or -1 for ever',
    read_duration,
    _number_or_text,
    _show_duration,
)
LISTEN = Kind(
    "address",
    'an address such as "127.0.0.1:11434", "[::1]:11434" or ":11434" (every interface)',
    read_listen,
    show=lambda listen: _quoted(str(listen)),
)
SERVERS = list_of(Kind("address", 'HOST:PORT, such as "10.0.0.2:50052"', read_server, show=_quoted))
CACHE_TYPE = choice(*CACHE_TYPES)
CONTEXT = integer(1, 1 << 30)  # the engine counts tokens in 32 bits
PARALLEL = integer(1, MAX_SLOTS)
ENVIRONMENT = Kind(
    "table of text", 'a table of texts such as { NAME = "value" }', read_env, inline_toml
)
