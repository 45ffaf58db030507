import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        yield Path(folder)
