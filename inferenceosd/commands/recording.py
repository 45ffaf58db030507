"""This machine's hardware as a file that may be handed to others."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from inferenceosd import __version__
from planners.hardware import HardwareProfile
from planners.profile_json import RecordedProfile, encode_profile


def recorded_now(hardware: HardwareProfile, *, dirs: Sequence[str]) -> str:
    """The profile as JSON with today as its origin; folders lose their paths, which name users.

    `dirs`: the configured folders of models, by whose number each is known, counted as the
    configuration's mistakes are.
    """
    today = datetime.now(UTC).date()
    numbers = {folder: number for number, folder in reversed(list(enumerate(dirs, 1)))}
    storage = tuple(
        replace(each, folder=f"models.dirs[{numbers.get(each.folder, '?')}]")
        for each in hardware.storage
    )
    origin = f"recorded by inferenceosd {__version__} on {today}"
    return encode_profile(RecordedProfile(origin, replace(hardware, storage=storage)))
