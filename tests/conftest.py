import os
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

# Engines of several tests share a few cores: a thread of libgomp's that waits for its sisters by
# turning round and round takes the core that they wait for, and a test lasts five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        yield Path(folder)
