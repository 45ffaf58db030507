"""Imports that take less time and memory: of both programs' start they are the most.

Imports none of our packages: see inferenceosd.installation.
"""

import gc
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

_UNWANTED = ("rich", "pygments")
"""structlog and httpx import them where they are found: 4 MB, to colour what we do not print."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Within: no search for garbage, of which imports make little, and no library for colours.

    What was imported is not searched afterwards either, until `settle`.
    """
    modules: MutableMapping[str, object] = sys.modules  # type: ignore[assignment]
    hidden = [name for name in _UNWANTED if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: as if it was not installed
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
