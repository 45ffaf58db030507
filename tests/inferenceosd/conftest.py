import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from inferenceosd.control import Control
from inferenceosd.in_force import InForce
from supervisor.models.catalogue import Catalogue
from supervisor.records.kept import Records, open_records
from tests.fakes.admin_service import OneModelService, admin_socket
from tests.fakes.house import House


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


@pytest.fixture
def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    house.write("")
    return house


@pytest.fixture
async def records(house: House) -> AsyncIterator[Records]:
    async with open_records(house.folder) as records:
        await records.load()
        yield records


@pytest.fixture
def control(house: House, records: Records) -> Control:
    config = house.read()
    catalogue = Catalogue(
        dirs=config.model_dirs, rules=config.models, defaults=config.model_defaults
    )
    return house.control(records, catalogue)


@pytest.fixture
def in_force(house: House, control: Control) -> InForce:
    assert control.config is house.in_force.config
    return house.in_force
