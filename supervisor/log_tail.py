"""The last lines a child wrote: bounded in lines and in bytes, whatever it floods."""

from collections import deque
from collections.abc import Iterator

MAX_LINE_BYTES = 4096  # llama-server's longest useful lines are tables of about 200
MAX_LINES = 4000  # a load at -lv 4 writes about 400


class LogTail:
    """A ring of decoded lines, fed with raw bytes as they come."""

    def __init__(self, *, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=max_lines)
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Take bytes in; yield each line that they complete, without its end."""
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MAX_LINE_BYTES]
        for raw in whole:
            line = raw[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
            self._lines.append(line)
            yield line

    def last(self, n: int) -> tuple[str, ...]:
        """Up to `n` of the newest lines, oldest first, an unfinished one included."""
        lines = [*self._lines, self._rest.decode(errors="replace")] if self._rest else self._lines
        return tuple(lines)[-n:] if n > 0 else ()
