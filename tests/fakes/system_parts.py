"""Parts of the system that some tests need beyond what make installs."""

import os
import shutil
from pathlib import Path

import pytest

MESA = "Mesa's software Vulkan driver is missing: apt install mesa-vulkan-drivers"
COMPILER = "a C compiler is missing: apt install gcc libc6-dev"
ANALYZE = "systemd-analyze is missing: apt install systemd"


def need_mesa() -> None:
    """Go on where the software Vulkan driver is installed."""
    _need(any(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")), MESA)


def need_compiler() -> None:
    """Go on where a vendor's library can be faked."""
    _need(shutil.which("cc") is not None, COMPILER)


def need_systemd_analyze() -> None:
    """Go on where units can be linted."""
    _need(shutil.which("systemd-analyze") is not None, ANALYZE)


def _need(is_there: bool, sentence: str) -> None:
    """Skip the test where the part is missing; in CI, whose job is to have it, fail."""
    if is_there:
        return
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)
