"""What every instance works with, as one value."""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from planners.hardware import DeviceId
from planners.model import ModelId
from planners.plan import LaunchPlan
from planners.settings import FleetSettings
from supervisor.leases.lease_book import LeaseBook
from supervisor.moving.kept_slots import KeptSlots
from supervisor.records.journal import Journal
from supervisor.records.launch_history import LaunchHistory


class Shop(Struct, frozen=True):
    """What every instance works with."""

    book: LeaseBook
    journal: Journal
    history: LaunchHistory
    settings: Callable[[], FleetSettings]
    environ: Mapping[str, str]
    run_dir: Path
    """0700; sockets of all children."""
    slots_dir: Path
    """0700; a folder of slot files for each."""
    cwd: Path
    """Where children stand: a folder that they cannot write and nobody puts a library into."""
    leaving: Callable[[str], None]
    """Called with the socket path of a child before it is stopped, and when it is gone."""
    heard_bytes: Callable[[str], int]
    """What the child behind a socket path has replied so far."""
    kept_slots: KeptSlots
    """What children of a model leave to the next one."""
    changed: Callable[[], None]
    """Wakes the fleet's loop."""
    device_lost: Callable[[str], None]
    """Called with what a child said of the device that it lost."""
    is_pinned: Callable[[ModelId], bool]
    """Whether the operator wants a model to stay loaded."""
    room_bytes: Callable[[LaunchPlan], Mapping[DeviceId, int]]
    """What a plan may take, on each of its devices and on HOST, by what counts as free."""
