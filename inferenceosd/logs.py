"""Where log lines go and what they look like: stderr, one event a line, time in UTC.

JSON where a machine reads (the journal, a file), columns on a terminal. structlog's events go there
straight, since each request writes one; the standard library's records, uvicorn's among them, take
the same processors.
"""

import asyncio
import atexit
import json
import logging
import logging.config
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from proxy.telemetry.served import Served, noted

SOON_S = 0.01  # lines of one moment are one write

_ENCODER = msgspec.json.Encoder()

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_QUIET = {
    "uvicorn.access": logging.CRITICAL,  # the proxy writes one line per request itself
    "uvicorn.error": logging.WARNING,  # its "Started server process" says what we say better
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "asyncio": logging.WARNING,
}
"""Loggers of libraries → the least that is wanted of them."""


def configure_logging(format: str, level: str, *, stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (stderr) as "json", "console" or "auto", from `level` up."""
    stream = sys.stderr if stream is None else stream
    _Current.lines.flush()
    _Current.lines = _Lines(stream)
    console = format == "console" or (format == "auto" and stream.isatty())
    shared = _shared_processors()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_last_processors(console=console, colors=stream.isatty()),
            ],
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name, least in _QUIET.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(least, LEVELS[level]))
    _Current.takes_structs = not console and LEVELS[level] <= logging.INFO
    structlog.configure(
        processors=[*shared, *_last_processors(console=console, colors=stream.isatty())],
        wrapper_class=_wrapper(LEVELS[level], console=console),
        logger_factory=_Current.lines,
        cache_logger_on_first_use=False,  # a reload may change level and format
    )


def note_served(line: Served) -> None:
    """Write the line about a request; in JSON within SOON_S, as there are many."""
    if _Current.takes_structs:
        line.timestamp = datetime.now(UTC)
        _Current.lines.soon(line)
    else:
        noted(line)


def _wrapper(least: int, *, console: bool) -> type:
    """structlog's logger for all levels from `least` up; one line a request is its usual work."""
    filtering: Any = structlog.make_filtering_bound_logger(least)
    if console or least > logging.INFO:
        return cast(type, filtering)

    class Quick(filtering):  # type: ignore[misc]
        """With a short way for a plain line: the same fields, without a loop over processors."""

        def info(self, event: str, *args: Any, **fields: Any) -> Any:
            is_plain = not args and "exc_info" not in fields and "stack_info" not in fields
            if not is_plain or self._processors[-1] is not _as_json:  # as in capture_logs
                return super().info(event, *args, **fields)
            told: EventDict = {**self._context, **fields, "event": event}
            told = structlog.contextvars.merge_contextvars(None, "info", told)
            told["level"], told["timestamp"] = "info", time.time()
            return self._logger.soon(told)

    return Quick


class _Lines:
    """structlog's last logger, and its own factory: writes lines; a lost one is no error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: list[str | EventDict | Served] = []
        self.debug = self.info = self.warning = self.error = self.critical = self.msg

    def __call__(self, *_: Any) -> "_Lines":
        return self

    def msg(self, line: str) -> None:
        """Write a line, and what waits before it."""
        self._waiting.append(line)
        self.flush()

    def soon(self, told: EventDict | Served) -> None:
        """Write a line within SOON_S, together with those that follow; at once off the loop.

        Put into words no sooner: many in a row take a third of the time. `timestamp` in seconds.
        """
        self._waiting.append(told)
        if len(self._waiting) > 1:
            return
        try:
            asyncio.get_running_loop().call_later(SOON_S, self.flush)
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        """Write what waits; a full disk or a reader that left fails nobody."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._stream.write(_all_worded(waiting))
            self._stream.flush()
        except (OSError, ValueError):
            pass


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Nothing is logged within: for a program whose stdout is an answer, in its own words."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


class _Current:
    """Where lines go now; the last of them are written as the process ends."""

    lines = _Lines(sys.stderr)
    takes_structs = False
    """Whether a request's line may go there unprocessed: in JSON, and where it is wanted."""


atexit.register(lambda: _Current.lines.flush())


class _Clock:
    """The second that was written last, since many lines fall into one."""

    second = -1
    text = ""


def _all_worded(waiting: Sequence[str | EventDict | Served]) -> str:
    """The lines, each with its end; those about requests, which are nearly all, in one call."""
    if all([type(told) is Served for told in waiting]):
        return _ENCODER.encode_lines(waiting).decode()
    return "".join([f"{_worded(told)}\n" for told in waiting])


def _worded(told: str | EventDict | Served) -> str:
    if isinstance(told, str):
        return told
    if isinstance(told, Served):
        return _ENCODER.encode(told).decode()
    told["timestamp"] = _timestamp(told["timestamp"])
    return _as_json(None, "info", told)


def _timestamp(now_s: float) -> str:
    """As structlog's TimeStamper writes it."""
    second = int(now_s)
    if second != _Clock.second:
        _Clock.second = second
        _Clock.text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{_Clock.text}.{int((now_s - second) * 1e6):06d}Z"


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last_processors(*, console: bool, colors: bool) -> list[Processor]:
    if console:
        # plain: rich, where it is installed, prints every local, prompts and keys among them
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _as_json]


def _as_json(_: Any, __: str, event: EventDict) -> str:
    """One JSON object; whatever JSON does not know as text: a line must not fail for its fields."""
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # a key or text that is no text
        return json.dumps(event, default=str, skipkeys=True)
