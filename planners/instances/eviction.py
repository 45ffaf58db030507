"""Which idle instances to stop so that a Shortfall closes, at the least cost."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from planners.hardware import DeviceId, HardwareProfile
from planners.instances.taken import taken
from planners.plan import InstanceId, Shortfall
from planners.view import Observed

MOST_EXACT = 12  # 4096 sets take 10 ms; above it greedy is near enough


class Candidate(Struct, frozen=True):
    """An idle, unpinned instance that may be stopped. Only such are put here."""

    instance_id: InstanceId
    frees: Mapping[DeviceId, int]
    """Bytes that stopping it gives back."""
    reload_s: float
    """What bringing it back costs its next caller."""
    last_used_s: float
    """Monotonic."""


def candidate(hardware: HardwareProfile, seen: Observed) -> Candidate:
    """An instance as what may be stopped."""
    ours = taken(hardware, (seen,))
    return Candidate(
        instance_id=seen.instance_id,
        # As it is counted, so is it freed: what was measured leaves out the process itself.
        frees=ours.promised + ours.held,
        reload_s=seen.load_s or 0.0,
        last_used_s=seen.last_used_s,
    )


def victims(candidates: Sequence[Candidate], shortfall: Shortfall) -> tuple[InstanceId, ...]:
    """The set that closes `shortfall` at the least reload time, () where none does.

    Among equals fewer instances, then those unused for longest.
    """
    missing = {d: n_bytes for d, n_bytes in shortfall.missing_bytes.items() if n_bytes > 0}
    helpful = [c for c in candidates if any(c.frees.get(d, 0) > 0 for d in missing)]
    if not missing or not _closes(helpful, missing):
        return ()
    chosen = _exact(helpful, missing) if len(helpful) <= MOST_EXACT else _greedy(helpful, missing)
    return tuple(c.instance_id for c in sorted(chosen, key=lambda c: c.last_used_s))


def _closes(chosen: Iterable[Candidate], missing: Mapping[DeviceId, int]) -> bool:
    kept = tuple(chosen)
    return all(
        sum(c.frees.get(device, 0) for c in kept) >= n_bytes for device, n_bytes in missing.items()
    )


def _cost(chosen: Sequence[Candidate]) -> tuple[float, int, float]:
    return sum(c.reload_s for c in chosen), len(chosen), sum(c.last_used_s for c in chosen)


def _exact(
    candidates: Sequence[Candidate], missing: Mapping[DeviceId, int]
) -> tuple[Candidate, ...]:
    sets = (
        chosen
        for size in range(1, len(candidates) + 1)
        for chosen in combinations(candidates, size)
        if _closes(chosen, missing)
    )
    return min(sets, key=_cost)


def _greedy(
    candidates: Sequence[Candidate], missing: Mapping[DeviceId, int]
) -> tuple[Candidate, ...]:
    """Most missing bytes per second of reload first, then whatever proved needless is spared."""
    left, chosen = list(candidates), list[Candidate]()
    while not _closes(chosen, missing):
        held = {d: sum(c.frees.get(d, 0) for c in chosen) for d in missing}
        open_bytes = {d: max(0, missing[d] - held[d]) for d in missing}

        def worth(c: Candidate, wanted: Mapping[DeviceId, int] = open_bytes) -> float:
            useful = sum(min(c.frees.get(d, 0), n_bytes) for d, n_bytes in wanted.items())
            return useful / (c.reload_s + 1e-3)

        best = max(left, key=lambda c: (worth(c), -c.last_used_s))
        left.remove(best)
        chosen.append(best)
    for spared in sorted(chosen, key=lambda c: -c.reload_s):
        rest = [c for c in chosen if c is not spared]
        if _closes(rest, missing):
            chosen = rest
    return tuple(chosen)
