import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog
import uvloop
from structlog.testing import LogCapture
from structlog.typing import EventDict

ON_BOTH_LOOPS = (
    "test_hostile_callers.py",
    "test_protocol.py",
    "test_server.py",
    "test_tls.py",
    "test_upstream.py",
    "test_wakening.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in the daemon; where sockets are the subject, asyncio's own loop as well."""
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def served() -> Iterator[list[EventDict]]:
    """The events logged during the test, which print nothing."""
    capture = LogCapture()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, capture],
        cache_logger_on_first_use=False,
    )
    yield capture.entries
    structlog.reset_defaults()
