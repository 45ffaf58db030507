"""The last lines a child wrote: bounded in lines, in bytes and in work, whatever it floods."""

import re
from collections import deque
from collections.abc import Iterator

MAX_LINE_BYTES = 4096  # llama-server's longest useful lines are tables of about 200
MAX_LINES = 4000  # a load at -lv 4 writes about 400
MAX_CHARS = 1 << 20  # over all lines
BURST_BYTES = 4 << 20  # read at once; a load at -lv 4 writes 40 KiB
BYTES_PER_S = 1 << 20  # read for long: a request writes 2 KiB
LAST_BYTES = 16 << 10  # kept of what is skipped, for it may tell why the child then died

_TOLD = re.compile(rb'(got exception: )(?:\{"error":\{"code":(\d+))?.*')
"""A refusal as a llama-server logs it: with what of the request is wrong, which may be a prompt."""


class LogTail:
    """A ring of decoded lines, fed with raw bytes as they come.

    Output beyond BYTES_PER_S is dropped unread, but for its end.
    """

    def __init__(self, *, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=max_lines)
        self._chars = 0
        self._rest = b""
        self._budget_bytes: float = BURST_BYTES
        self._fed_s: float | None = None
        self._skipped_bytes = 0
        self._skipped_end = b""

    def feed(self, data: bytes, *, now_s: float) -> Iterator[str]:
        """Take bytes in; yield each line that they complete, without its end."""
        earned = 0.0 if self._fed_s is None else (now_s - self._fed_s) * BYTES_PER_S
        self._fed_s = now_s
        self._budget_bytes = min(BURST_BYTES, self._budget_bytes + earned)
        cost_bytes = len(data) + len(self._skipped_end)
        if self._budget_bytes < cost_bytes:
            self._skipped_bytes += len(data)
            self._skipped_end = (self._skipped_end + data)[-LAST_BYTES:]
            return
        self._budget_bytes -= cost_bytes
        if self._skipped_bytes:
            yield from self._resumed()
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MAX_LINE_BYTES]
        for raw in whole:
            yield self._kept(_decoded(raw))

    def last(self, n: int) -> tuple[str, ...]:
        """Up to `n` of the newest lines, oldest first, an unfinished one included."""
        lines = list(self._lines)
        if self._skipped_bytes:
            end = self._skipped_end.removesuffix(b"\n").split(b"\n")[1:]
            lines += [self._gap(), *map(_decoded, end)]
        elif self._rest:
            lines.append(_decoded(self._rest))
        return tuple(lines[-n:]) if n > 0 else ()

    def _resumed(self) -> Iterator[str]:
        """A line that tells what was skipped, and the whole lines at its end."""
        yield self._kept(self._gap())
        _, *whole = self._skipped_end.split(b"\n")  # the first is the end of a longer one
        self._rest = whole.pop() if whole else b""
        for raw in whole:
            yield self._kept(_decoded(raw))
        self._skipped_bytes, self._skipped_end = 0, b""

    def _gap(self) -> str:
        return f"[inferenceosd: {self._skipped_bytes} bytes came too fast and were not read]"

    def _kept(self, line: str) -> str:
        if len(self._lines) == self._lines.maxlen:
            self._chars -= len(self._lines.popleft())
        self._lines.append(line)
        self._chars += len(line)
        while self._chars > MAX_CHARS:
            self._chars -= len(self._lines.popleft())
        return line


def _decoded(raw: bytes) -> str:
    """A line, without what of a caller's request is in it."""
    raw = raw[:MAX_LINE_BYTES]
    if b"got exception: " in raw:
        raw = _TOLD.sub(rb"\1\2 (its caller was told)", raw)
    return raw.decode(errors="replace").rstrip("\r")
