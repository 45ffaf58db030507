"""Where log lines go and what they look like: stderr, one event a line, time in UTC.

JSON where a machine reads (the journal, a file), columns on a terminal. structlog's events go there
straight, since each request writes one; the standard library's records, uvicorn's among them, take
the same processors.
"""

import json
import logging
import logging.config
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor

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
    structlog.configure(
        processors=[*shared, *_last_processors(console=console, colors=stream.isatty())],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Lines(stream),
        cache_logger_on_first_use=False,  # a reload may change level and format
    )


class _Lines:
    """structlog's last logger, and its own factory: writes each line; a lost one is no error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.debug = self.info = self.warning = self.error = self.critical = self.msg

    def __call__(self, *_: Any) -> "_Lines":
        return self

    def msg(self, line: str) -> None:
        """Write a line. A full disk or a reader that left must not fail what is logged about."""
        try:
            self._stream.write(line + "\n")
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


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last_processors(*, console: bool, colors: bool) -> list[Processor]:
    if console:
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, _as_json]


def _as_json(_: Any, __: str, event: EventDict) -> str:
    """One JSON object; whatever JSON does not know as text: a line must not fail for its fields."""
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # a key or text that is no text
        return json.dumps(event, default=str, skipkeys=True)
