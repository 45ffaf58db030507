"""The part of a launch that decides its compute buffers: few layers stand for all that are alike.

ggml-alloc frees as it goes, so a run of equal layers needs no more than a few of them do, and a
device between two others needs what another one with the same layers does.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from planners.graph.fallback import is_remote
from planners.hardware import HOST, DeviceId

MOST_DRAWN_WHOLE = 16  # layers: all of them are drawn
_TURNS = 3  # how often one kind of layer follows another before more of it are left out


@dataclass(frozen=True, slots=True)
class Outline:
    """Which layers are drawn, and whose figures stand for which device."""

    layers: tuple[int, ...]
    stand_in: Mapping[DeviceId, DeviceId]


def outline(
    layers: Sequence[Hashable],
    left: Sequence[frozenset[str]],
    owners: Sequence[DeviceId],
    *,
    devices: Sequence[DeviceId],
    limits: Mapping[DeviceId, int],
    most_whole: int = MOST_DRAWN_WHOLE,
) -> Outline:
    """The layers worth drawing: all of a small model, else each turn of kinds a few times.

    `layers`: equal where the layers are. `owners` names the output layer's device last.
    `most_whole`: of up to so many layers, all are drawn.
    """
    kinds = [(layer, names) for layer, names in zip(layers, left, strict=False)]
    drawn = _turns(kinds, owners) if len(layers) > most_whole else range(len(layers))
    segments = {
        device: tuple(hash(kinds[i]) for i in drawn if owners[i] == device) for device in devices
    }
    first_local = next((device for device in devices if not is_remote(device)), None)
    seen: dict[object, DeviceId] = {}
    stand_in = {HOST: HOST}
    for place, device in enumerate(devices):
        # The last layer goes on with the rows that are put out alone.
        is_special = device == first_local or place == 0 or device in owners[-2:]
        follows_host = place and owners[-1] != device and not segments[devices[place - 1]]
        key: object = (segments[device], is_remote(device), limits.get(device), follows_host)
        stand_in[device] = device if is_special else seen.setdefault(key, device)
    kept = set(stand_in.values())
    return Outline(tuple(i for i in drawn if owners[i] in kept), stand_in)


def _turns(
    kinds: Sequence[tuple[Hashable, frozenset[str]]], owners: Sequence[DeviceId]
) -> list[int]:
    """Layers whose kind has followed the kind before it, on one device, at most a few times."""
    counts: Counter[object] = Counter()
    found = []
    before: object = None
    marks = [hash(kind) for kind in kinds]
    for i, mark in enumerate(marks):
        turn = (owners[i], before, mark)
        counts[turn] += 1
        if counts[turn] <= _TURNS or i == len(marks) - 1:
            found.append(i)
        before = mark
    return found
