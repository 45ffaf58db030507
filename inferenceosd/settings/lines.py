"""Which line of a TOML text holds which key: tomllib parses, but does not tell.

Reads text that tomllib has taken, or its part before the first mistake, so it never judges: it
follows strings, brackets and comments only as far as needed to know where each key stands. What it
loses track of (values nested deeper than MAX_DEPTH) has its parent's line.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator

from inferenceosd.settings.kinds import KeyPath

MAX_DEPTH = 16  # of keys, and of brackets within one value; settings nest four deep

_BLANK = re.compile(r"[ \t\r\n]*(?:#[^\n]*[ \t\r\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    + r"|'''.*?'''(?:'{0,2})"
    + r'|"(?:\\.|[^"\\\n])*"'
    + r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of every key and array item in `text`; of a table, its header's."""
    scanner = _Scanner(text)
    scanner.scan()
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    return {path: bisect_right(starts, at) for path, at in scanner.found.items()}


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """The line of `path`, or of the nearest of its parents that has one."""
    return next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)


def key_at_end(text: str) -> KeyPath | None:
    """The key whose statement the text breaks off in; None where that cannot be told.

    For text up to where tomllib gave up.
    """
    scanner = _Scanner(text)
    scanner.scan()
    path, start = scanner.last
    is_on_last_line = start >= text.rfind("\n") + 1
    return scanner.open or (path if is_on_last_line else ()) or None


class _Scanner:
    """One pass over a text; `found` maps each key's path to its offset."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._sizes: dict[KeyPath, int] = {}  # arrays of tables: entries so far
        self.found: dict[KeyPath, int] = {}
        self.last: tuple[KeyPath, int] = ((), 0)
        """The one found last, be it for the second time."""
        self.open: KeyPath = ()
        """What the innermost brackets that the text ends in belong to."""

    def _find(self, path: KeyPath, at: int) -> None:
        self.found.setdefault(path, at)
        self.last = (path, at)

    def scan(self) -> None:
        """Walk the statements. Stops early where it is lost; what was found stays true."""
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self._text):
            start = self._at
            if self._text.startswith("[", start):
                table = self._header(start)
            else:
                self._assignment(table, depth=0)
            if self._at == start:
                return

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _header(self, start: int) -> KeyPath:
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        *parents, last = [*self._keys()] or [""]
        table: KeyPath = ()
        for key in parents:
            table = self._current((*table, key))
        table = (*table, last)
        if is_array:
            index = self._sizes[table] = self._sizes.get(table, 0) + 1
            table = (*table, index - 1)
        self._find(table, start)
        self._skip(re.compile(r"[ \t]*\]*"))
        return table

    def _current(self, path: KeyPath) -> KeyPath:
        """`path`, led on into the latest entry where it is an array of tables."""
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _keys(self) -> Iterator[str]:
        """The parts of a dotted key; ends before whatever follows it."""
        while True:
            self._skip(_SPACE)
            quoted = _STRING.match(self._text, self._at)
            match = quoted or _BARE_KEY.match(self._text, self._at)
            if match is None:
                return
            self._at = match.end()
            yield _unquoted(match[0]) if quoted else match[0]
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return
            self._at += 1

    def _assignment(self, table: KeyPath, *, depth: int) -> None:
        start = self._at
        path = table
        for key in self._keys():
            if len(path) < MAX_DEPTH:
                path = (*path, key)
                self._find(path, start)
        if self._text.startswith("=", self._at):
            self._at += 1
            self._skip(_SPACE)
            self._value(path, depth=depth)

    def _value(self, path: KeyPath, *, depth: int) -> None:
        opening = self._text[self._at : self._at + 1]
        if opening in ("[", "{") and depth >= MAX_DEPTH:
            self._at = len(self._text)
        elif opening == "[":
            self._array(path, depth=depth)
        elif opening == "{":
            self._inline_table(path, depth=depth)
        else:
            self._skip(_STRING if opening in ('"', "'") else _BARE_VALUE)

    def _array(self, path: KeyPath, *, depth: int) -> None:
        self._at += 1
        for index in range(len(self._text)):
            self._skip(_BLANK)
            if self._ended("]", path):
                return
            before = self._at
            self._find((*path, index), before)
            self._value((*path, index), depth=depth + 1)
            self._skip(_BLANK)
            self._skip(re.compile(","))
            if self._at == before:
                return

    def _inline_table(self, path: KeyPath, *, depth: int) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK)
            if self._ended("}", path):
                return
            before = self._at
            self._assignment(path, depth=depth + 1)
            self._skip(_BLANK)
            self._skip(re.compile(","))
            if self._at == before:
                return

    def _ended(self, closing: str, path: KeyPath) -> bool:
        """True at `closing`, which is taken, and at the end of the text."""
        if self._text.startswith(closing, self._at):
            self._at += 1
            return True
        if self._at < len(self._text):
            return False
        self.open = self.open or path
        return True


def _unquoted(literal: str) -> str:
    """The text that a quoted key means."""
    if literal.startswith("'"):
        return literal[1:-1]

    def meant(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(meant, literal[1:-1])
