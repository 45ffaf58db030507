"""Where log lines go and what they look like: stderr, one event a line, time in UTC.

JSON where a machine reads (the journal, a file), columns on a terminal. structlog's events and the
standard library's records, uvicorn's among them, end in the same pipeline.
"""

import logging
import logging.config
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import structlog

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
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a reload may change level and format
    )


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Nothing is logged within: for a program whose stdout is an answer, in its own words."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _shared_processors() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last_processors(*, console: bool, colors: bool) -> list[structlog.typing.Processor]:
    if console:
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=_text)]


def _text(value: Any) -> str:
    """Whatever JSON does not know, as text: a log line must not fail for its fields."""
    return str(value)
