"""This machine's hardware as a file that may be handed to others."""

from dataclasses import replace
from datetime import UTC, datetime

from inferenceosd import __version__
from planners.hardware import HardwareProfile
from planners.profile_json import RecordedProfile, encode_profile


def recorded_now(hardware: HardwareProfile) -> str:
    """The profile as JSON with today as its origin; folders lose their paths, which name users."""
    today = datetime.now(UTC).date()
    storage = tuple(
        replace(each, folder=f"models.dirs[{index}]") for index, each in enumerate(hardware.storage)
    )
    origin = f"recorded by inferenceosd {__version__} on {today}"
    return encode_profile(RecordedProfile(origin, replace(hardware, storage=storage)))
