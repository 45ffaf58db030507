"""What a launch that ran out of memory teaches, and what the next try may ask for. Pure.

A device that refused what it seemed to have free hides memory: from other programs' point of view
it is taken, or cut into pieces. Each rung hides more than the launch that died there left over, so
placement makes its next concession by itself, in its own order: batch, prompt cache, context, KV
type, experts, layers, processor. The rung that a launch got ready on is remembered.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from planners.hardware import HOST, DeviceId
from planners.instances.exits import OUT_OF_MEMORY, Cause, ExitKind
from planners.plan import DeviceBytes, LaunchPlan
from planners.reasons import Reason, ReasonKind
from planners.sizes import MIB, format_size

MOST_TRIES = 8
FIRST_STEP_SHARE = (
    0.05  # of a launch's bytes on the device; each try doubles it: five reach them all
)
LEAST_STEP_BYTES = 32 * MIB
MOST_HIDDEN_BYTES = 1 << 50  # of a remembered rung: what is read back is bounded

MUTE = frozenset({ExitKind.CRASH, ExitKind.KILLED})
"""How a load ends for want of memory without saying so: the kernel kills it, or a check is missing
and its last lines are lost."""
MUTE_TRIES = 2  # as many are skipped: only so many deaths are left before the breaker opens

_REFUSED = re.compile(r"failed to allocate (\S{1,160}) buffer of size \d+", re.IGNORECASE)
_WRITTEN = re.compile(r"(\S{1,160})=(\d{1,16})")


class RungKey(Struct, frozen=True):
    """Whose rung it is: another file or another engine starts at the top again."""

    model_digest: str
    engine_id: str


class Rung(Struct, frozen=True):
    """Bytes that count as free on a device, but cannot be had for this model."""

    hidden_bytes: Mapping[DeviceId, int] = field(default_factory=dict)

    def less(self, missing_bytes: Mapping[DeviceId, int]) -> "Rung":
        """The rung with so much of it left to be had after all."""
        left = {d: n - max(0, missing_bytes.get(d, 0)) for d, n in self.hidden_bytes.items()}
        return Rung({d: n for d, n in left.items() if n > 0})

    def text(self) -> str:
        """As it is kept in the journal; `rung_of` reads it."""
        return " ".join(f"{d}={n}" for d, n in sorted(self.hidden_bytes.items()))

    def reasons(self) -> tuple[Reason, ...]:
        """What it is, for people; none where it hides nothing."""
        where = ", ".join(f"{format_size(n)} on {d}" for d, n in sorted(self.hidden_bytes.items()))
        if not where:
            return ()
        text = (
            f"{where} cannot be had, though free: a launch died there, of memory or without a word"
        )
        return (Reason(ReasonKind.OUT_OF_MEMORY, text),)


def rung_of(text: str | None) -> Rung | None:
    """The rung that `text` tells of; None where it tells of none."""
    found = {DeviceId(name): int(n) for name, n in _WRITTEN.findall(text or "")}
    hidden = {device: n for device, n in found.items() if 0 < n <= MOST_HIDDEN_BYTES}
    return Rung(hidden) if hidden else None


def next_rung(
    rung: Rung,
    plan: LaunchPlan,
    cause: Cause,
    *,
    room_bytes: Mapping[DeviceId, int],
    tries: int,
) -> Rung | None:
    """Where to try next, after `plan` died of `cause`; None where there is nothing to learn.

    `room_bytes`: what the plan could have had on each of its devices and on HOST, by what counted
    as free, whatever `rung` already hides. `tries`: launches that died of memory before this one,
    with none between that got ready.
    """
    where = starved(plan, cause)
    tries += MUTE_TRIES if cause.kind in MUTE else 0
    if tries >= MOST_TRIES or not where:
        return None
    hidden = dict(rung.hidden_bytes)
    for part in plan.predicted:
        if part.device_id in where:
            needed = part.upper_bytes - _elastic_bytes(plan, part)
            step = max(LEAST_STEP_BYTES, int(needed * FIRST_STEP_SHARE)) << tries
            left = max(0, room_bytes.get(part.device_id, 0) - needed)
            hidden[part.device_id] = max(hidden.get(part.device_id, 0), left) + step
    return Rung(hidden)


def starved(plan: LaunchPlan, cause: Cause) -> frozenset[DeviceId]:
    """The devices of the plan, or HOST, that had no more memory; () where it was not of that.

    Of a load that ended without a word: HOST where it was killed, as the kernel does, or where
    there is nothing else; else the devices.
    """
    if cause.kind not in OUT_OF_MEMORY | MUTE:
        return frozenset()
    if cause.kind in (ExitKind.HOST_OOM, ExitKind.KILLED):
        return frozenset({HOST})
    if cause.kind is ExitKind.CRASH and not plan.devices:
        return frozenset({HOST})
    by_name = {name: device_id for device_id, name, _ in plan.devices}
    named = {by_name[name] for name in _refused(cause) if name in by_name}
    return frozenset(named or by_name.values())


def _refused(cause: Cause) -> Iterator[str]:
    """The engine's names of what refused a buffer."""
    for line in (cause.summary, *cause.log_tail):
        for name in _REFUSED.findall(line):
            yield name.partition("[")[0]


def _elastic_bytes(plan: LaunchPlan, part: DeviceBytes) -> int:
    """Of the host's bytes, the prompt cache: it fills later, so no load dies of it."""
    if part.device_id != HOST or not plan.cache_ram_mib:
        return 0
    one_state = sum(p.kv_bytes for p in plan.predicted) // plan.n_parallel
    return min(part.overhead_bytes, plan.cache_ram_mib * MIB + one_state)
