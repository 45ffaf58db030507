"""Which built llama-server to use for which devices."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

DEFAULT_ORDER = ("cuda", "hip", "metal", "vulkan", "cpu")
"""Vendor code before Vulkan, any GPU before the CPU."""

FASTER = 1.1  # by a tenth: what is less may be the day's

Speeds = Mapping[str, Mapping[str, float]]
"""Engine → devices, as launch keys name them → decode tokens/s of one model that were measured."""
_UNMEASURED: Speeds = MappingProxyType({})


class EngineDevice(Struct, frozen=True):
    """One line of `llama-server --list-devices`."""

    name: str
    """What `--device` understands: "Vulkan0", "CUDA1"."""
    description: str
    total_bytes: int
    free_bytes: int


class LogDialect(Struct, frozen=True):
    """At which `--verbosity` an engine logs what is read, and how its lines begin.

    As said here they are those of llama.cpp since b10434; scales before it had fewer levels, or
    none, where 4 would log every token.
    """

    buffers_verbosity: int = 4
    """From here on it tells each buffer that it reserves."""
    sizes_verbosity: int = 5
    """From here on its dry run tells sizes to 0.01 MiB."""
    has_stamps: bool = True
    """Whether each message begins with a time, which tells it from what it quotes of a request."""


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
    log: LogDialect = LogDialect()
    saves_slots: bool = True
    """Whether it wrote what a slot holds to a file, and read that back."""
    speaks_child_protocol: bool = True
    """Whether it tells its states on stdout, and ends with its stdin."""


class RejectedEngine(Struct, frozen=True):
    """A candidate that cannot run here."""

    path: str
    source: str
    reason: str
    """One clause an operator can act on: "built for another CPU (SIGILL on its first decode)"."""


def preferred(
    engines: Sequence[Engine], *, order: Sequence[str] = (), measured: Speeds = _UNMEASURED
) -> tuple[Engine, ...]:
    """All engines, best first: backends named in `order`, then the rest in DEFAULT_ORDER.

    Engines of one backend keep the order in which they were found. One that `measured` shows to be
    faster on the same devices goes before the other, unless `order` says otherwise of the two.
    """
    ranks = {backend: rank for rank, backend in enumerate(dict.fromkeys((*order, *DEFAULT_ORDER)))}
    ranked: list[Engine] = []
    for engine in sorted(engines, key=lambda each: ranks.get(each.backend, len(ranks))):
        place = len(ranked)
        while place and _goes_before(engine, ranked[place - 1], order, measured):
            place -= 1
        ranked.insert(place, engine)
    return tuple(ranked)


def _goes_before(engine: Engine, other: Engine, order: Sequence[str], measured: Speeds) -> bool:
    if other.backend in order:
        return False
    ours, theirs = measured.get(engine.engine_id, {}), measured.get(other.engine_id, {})
    return any(ours[devices] > theirs[devices] * FASTER for devices in ours.keys() & theirs.keys())
