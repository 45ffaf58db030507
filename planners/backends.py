"""Which built llama-server to use for which devices."""

from collections.abc import Sequence

from msgspec import Struct

DEFAULT_ORDER = ("cuda", "hip", "metal", "vulkan", "cpu")
"""Vendor code before Vulkan, any GPU before the CPU."""


class EngineDevice(Struct, frozen=True):
    """One line of `llama-server --list-devices`."""

    name: str
    """What `--device` understands: "Vulkan0", "CUDA1"."""
    description: str
    total_bytes: int
    free_bytes: int


class Engine(Struct, frozen=True):
    """A llama-server binary that was tried on this machine and decoded."""

    engine_id: str
    """12 hex digits of the binary's and its libraries' content."""
    backend: str
    """"cpu", "vulkan", "cuda", "hip" or "metal": the kind of its devices."""
    path: str
    """Absolute path of llama-server."""
    source: str
    """Where it was found: "config", "built", "path" or "quickstart"."""
    env: tuple[tuple[str, str], ...]
    """Variables the child needs on top of the scrubbed environment."""
    flags: frozenset[str]
    """Every option its --help names; a flag outside this set is never passed."""
    devices: tuple[EngineDevice, ...]
    version: str
    has_tiles: bool = False
    """Whether it lays out the host's weights for tiles (AMX): by its build and this processor."""


class RejectedEngine(Struct, frozen=True):
    """A candidate that cannot run here."""

    path: str
    source: str
    reason: str
    """One clause an operator can act on: "built for another CPU (SIGILL on its first decode)"."""


def preferred(engines: Sequence[Engine], *, order: Sequence[str] = ()) -> tuple[Engine, ...]:
    """All engines, best first: backends named in `order`, then the rest in DEFAULT_ORDER.

    Engines of one backend keep the order in which they were found.
    """
    ranks = {backend: rank for rank, backend in enumerate(dict.fromkeys((*order, *DEFAULT_ORDER)))}
    return tuple(sorted(engines, key=lambda engine: ranks.get(engine.backend, len(ranks))))
