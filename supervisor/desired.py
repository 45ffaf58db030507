"""What a fleet is given: what the operator wants of it, and where its children live."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from planners.backends import Engine
from planners.rollout import Newcomer
from planners.settings import FleetSettings, PlacementRules


class Desired(Struct, frozen=True):
    """What the operator wants, replaced whole by a reload."""

    engines: tuple[Engine, ...] | None
    """None while they are still being tried: nothing is launched and nobody refused."""
    rules: PlacementRules
    settings: FleetSettings
    newcomers: tuple[Newcomer, ...] = ()
    """Engines that one model tries before the others move there."""


class Ground(Struct, frozen=True):
    """Where children live."""

    run_dir: Path
    cwd: Path
    environ: Mapping[str, str]
    slots: Path | None = None
    """The folder for conversations on their way between children; run_dir where there is none."""
    preflights: Path | None = None
    """The file that remembers dry runs; None remembers them for this run alone."""
