"""Imports that take less time and memory: of both programs' start they are the most.

Imports none of our packages: see inferenceosd.installation.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import ModuleType

_STAND_INS: Mapping[str, ModuleType | None] = {
    # None: as if it was not installed, which those who import it allow for.
    "rich": None,  # structlog and httpx, to colour what we do not print: 4 MB with pygments
    "pygments": None,
    # The conversions that sqlite-utils' own command line offers, dateutil among them: 1 MB.
    "sqlite_utils.recipes": ModuleType("sqlite_utils.recipes"),
}
"""Libraries that others import and we never use, and what they find in their stead."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within: no search for garbage, of which imports make little, and no library nobody uses.

    What was imported is not searched afterwards either, until `settle`.
    """
    modules: MutableMapping[str, object] = sys.modules  # type: ignore[assignment]
    hidden = {name: found for name, found in _STAND_INS.items() if name not in modules}
    modules.update(hidden)
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
        gc.freeze()
        if collected:
            gc.enable()


def settle() -> None:
    """Give back what imports left as garbage, and never look at the rest again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim()


def trim() -> None:
    """Give the system back what was freed, where the C library keeps it: glibc, 1 to 2 MB.

    Takes about a millisecond.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
