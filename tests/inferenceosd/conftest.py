import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.fakes.admin_service import OneModelService, admin_socket


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging as it was before."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


@pytest.fixture
def service() -> OneModelService:
    return OneModelService()


@pytest.fixture
def served(service: OneModelService) -> Iterator[Path]:
    with admin_socket(service) as path:
        yield path
