import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and none too slow for a busy machine.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        yield Path(folder)
