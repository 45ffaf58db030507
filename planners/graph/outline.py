"""The part of a launch that decides its compute buffers: few layers stand for all that are alike.

ggml-alloc frees as it goes, so a run of equal layers needs no more than a few of them do, and a
device between two others needs what another one with the same layers does.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from msgspec import Struct

from planners.graph.fallback import is_remote
from planners.hardware import HOST, DeviceId

MOST_DRAWN_WHOLE = 16  # layers: all of them are drawn
_TURNS = 3  # how often one kind of layer follows another before more of it are left out
_MASKED_TURNS = 1  # likewise where kinds differ in their masks alone, after each mask


class Outline(Struct, frozen=True):
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
    alike: Sequence[Hashable] | None = None,
    is_torn: bool = False,
) -> Outline:
    """The layers worth drawing: all of a small model, else each turn of kinds a few times.

    `layers`: equal where the layers are. `owners` names the output layer's device last.
    `most_whole`: of up to so many layers, all are drawn. `alike`: equal where the results of layers
    take the same bytes and only their masks differ, as with and without a window; None where no
    two kinds are like that. `is_torn`: the host holds something for each layer of every device, so
    that none stands for another.
    """
    marks = [hash(kind) for kind in zip(layers, left, strict=False)]
    if len(layers) <= most_whole:
        drawn: Sequence[int] = range(len(layers))
    elif alike is None:
        drawn = _turns(marks, owners)
    else:
        classes = [hash(kind) for kind in zip(alike, left, strict=False)]
        drawn = _masked_turns(marks, classes, owners)
    segments = {device: tuple(marks[i] for i in drawn if owners[i] == device) for device in devices}
    first_local = next((device for device in devices if not is_remote(device)), None)
    seen: dict[object, DeviceId] = {}
    stand_in = {HOST: HOST}
    for place, device in enumerate(devices):
        # The last layer goes on with the rows that are put out alone.
        is_special = is_torn or device == first_local or place == 0 or device in owners[-2:]
        follows_host = place and owners[-1] != device and not segments[devices[place - 1]]
        key: object = (segments[device], is_remote(device), limits.get(device), follows_host)
        stand_in[device] = device if is_special else seen.setdefault(key, device)
    kept = set(stand_in.values())
    return Outline(tuple(i for i in drawn if owners[i] in kept), stand_in)


def _turns(marks: Sequence[int], owners: Sequence[DeviceId]) -> list[int]:
    """Layers whose kind has followed the kind before it, on one device, at most a few times."""
    counts: Counter[object] = Counter()
    found = []
    before: int | None = None
    for i, mark in enumerate(marks):
        turn = (owners[i], before, mark)
        counts[turn] += 1
        if counts[turn] <= _TURNS or i == len(marks) - 1:
            found.append(i)
        before = mark
    return found


def _masked_turns(
    marks: Sequence[int], classes: Sequence[int], owners: Sequence[DeviceId]
) -> list[int]:
    """As `_turns`, on devices by what results take, and anew from each mask that comes to one.

    A mask lies among the results from the first layer that reads it to the last one, so both of
    these are drawn. The host's layers send their caches, as long as the window, to a device.
    """
    pairs = [*zip(owners, marks, strict=False)]
    last = {pair: i for i, pair in enumerate(pairs)}
    usual = {*_turns(marks, owners)}
    counts: Counter[object] = Counter()
    masks: Counter[DeviceId] = Counter()
    met: set[tuple[DeviceId, int]] = set()
    found = []
    before: object = None
    for i, (pair, kind) in enumerate(zip(pairs, classes, strict=False)):
        owner, _ = pair
        masks[owner] += pair not in met
        met.add(pair)
        turn = (owner, masks[owner], before, kind)
        counts[turn] += 1
        is_drawn = counts[turn] <= _MASKED_TURNS or i == last[pair]
        if i in usual if owner == HOST else is_drawn:
            found.append(i)
        before = kind
    return found
