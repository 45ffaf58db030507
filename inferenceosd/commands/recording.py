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
    labels = {folder: _label(number) for number, folder in reversed(list(enumerate(dirs, 1)))}
    storage = tuple(
        replace(each, folder=labels.get(each.folder, _label("?"))) for each in hardware.storage
    )
    origin = f"recorded by inferenceosd {__version__} on {today}"
    return encode_profile(RecordedProfile(origin, replace(hardware, storage=storage)))


def with_paths(hardware: HardwareProfile, *, dirs: Sequence[str]) -> HardwareProfile:
    """The recorded profile with its folders' paths again, for who runs the daemon of these `dirs`.

    Folders of another machine, which go by no such number, are left as they are.
    """
    paths = {_label(number): folder for number, folder in enumerate(dirs, 1)}
    storage = tuple(
        replace(each, folder=paths.get(each.folder, each.folder)) for each in hardware.storage
    )
    return replace(hardware, storage=storage)


def _label(number: int | str) -> str:
    return f"models.dirs[{number}]"
