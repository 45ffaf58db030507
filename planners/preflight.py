"""The dry run of a plan, its pure half: when it is worth one, its command line, what it says.

`llama-server --fit on` builds the model and its context without memory, prints what each device
would take, and only then loads. Killed at that line it has read no weight (common/fit.cpp, b10434).
Weights, KV cache and state stay those of the closed form, which are exact; the dry run's compute
buffers replace the predicted ones.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planners.argv import child_argv
from planners.backends import Engine
from planners.buffers import BufferKind, BufferLine, measured
from planners.errors import PlanError
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.layout.budget import Budgets, budgets
from planners.plan import DeviceBytes, LaunchPlan
from planners.sizes import MIB

VERBOSITY = "5"  # below it the engine prints whole MiB alone
STRADDLED_MARGINS = 2  # a prediction that is wrong by so many of its margins would turn a decision
_HEAD = "memory breakdown [MiB]"
# Bounded repeats: a child's log is not ours to trust.
_ROW = re.compile(
    r"\|\s{1,8}- (\S{1,40})[^|]{0,200}\|[^|]{0,60}?\b\d{1,9} = {1,9}\d{1,9} \+ {1,9}\d{1,9}"
    r" \+ {1,9}(\d{1,9})\b"
)


@dataclass(frozen=True, slots=True)
class PreflightFailed:
    """A dry run that said nothing, and why. The plan stands on its own prediction."""

    reason: str


def straddles(plan: LaunchPlan, hardware: HardwareProfile) -> bool:
    """Whether the plan fits so narrowly that an error of its prediction would decide.

    True where, on some device, less is left than twice the margin that the estimate carries.
    """
    room = budgets(hardware, backend=plan.backend, promised={}, held={})
    known = {budget.device_id for budget in room.devices} | {HOST}
    return any(
        _left_bytes(part, room) < STRADDLED_MARGINS * part.margin_bytes
        for part in plan.predicted
        if part.device_id in known and part.margin_bytes
    )


def _left_bytes(part: DeviceBytes, room: Budgets) -> int:
    return room.room_bytes(part.device_id) - part.total_bytes


def preflight_argv(plan: LaunchPlan, *, engine: Engine, socket_path: str) -> tuple[str, ...]:
    """The command line of a dry run: the plan's own, told to measure first.

    Raises PlanError where the engine has no `--fit`.
    """
    if "--fit" not in engine.flags or "--fit-target" not in engine.flags:
        raise PlanError(f"{engine.path} cannot measure a plan before it loads: it has no --fit")
    argv = list(child_argv(plan, engine=engine, socket_path=socket_path, slot_dir=""))
    argv = _without(argv, "--slot-save-path", "--fit", "--verbosity", "--log-verbosity", "-lv")
    verbosity = next(
        name for name in ("--verbosity", "--log-verbosity", "-lv") if name in engine.flags
    )
    # Explicit layers make the fitting stop at its first probe; a target of 0 has nothing changed.
    tail = ("--fit", "on", "--fit-target", "0", verbosity, VERBOSITY, "--no-warmup")
    return (*argv, *(flag for flag in tail if not flag.startswith("--no-") or flag in engine.flags))


def _without(argv: Sequence[str], *names: str) -> list[str]:
    """`argv` less these options and their values."""
    kept, rest = [], iter(argv)
    for word in rest:
        if word in names:
            next(rest, None)
        else:
            kept.append(word)
    return kept


class DryRun:
    """What a dry run has printed so far, line by line. Garbage is passed over."""

    def __init__(self) -> None:
        self._buffers: list[BufferLine] = []
        self._table: dict[str, int] = {}
        self._in_table = self.is_complete = False

    def feed(self, line: str, buffer: BufferLine | None) -> None:
        """One line, and the buffer that it tells of. Past the first table nothing counts."""
        if self.is_complete:
            return
        if buffer is not None and buffer.kind in (BufferKind.COMPUTE, BufferKind.OUTPUT):
            self._buffers.append(buffer)
        if not self._in_table:
            self._in_table = _HEAD in line
        elif (row := _ROW.search(line[:500])) is not None:
            self._table[row[1]] = int(row[2]) * MIB
        else:
            self.is_complete = bool(self._table)

    def compute_bytes(self, plan: LaunchPlan) -> dict[DeviceId, int]:
        """Compute and output buffers per device of the plan; to the MiB where no line is exact."""
        names = {name: device for device, name, _ in plan.devices} | {"Host": HOST}
        told = {names[name]: size for name, size in self._table.items() if name in names}
        exact = {part.device_id: part.compute_bytes for part in measured(self._buffers, plan)}
        return told | {device: size for device, size in exact.items() if size}


def excess_bytes(
    parts: Iterable[DeviceBytes], plan: LaunchPlan, hardware: HardwareProfile
) -> dict[DeviceId, int]:
    """By how much `parts`, measured, exceed the room that the plan was made for."""
    room = budgets(hardware, backend=plan.backend, promised={}, held={})
    known = {budget.device_id for budget in room.devices} | {HOST}
    over = {
        part.device_id: part.total_bytes - room.room_bytes(part.device_id)
        for part in parts
        if part.device_id in known
    }
    return {device: n_bytes for device, n_bytes in over.items() if n_bytes > 0}


def corrected(
    predicted: Iterable[DeviceBytes], compute_bytes: Mapping[DeviceId, int], *, output_bytes: int
) -> tuple[DeviceBytes, ...]:
    """`predicted` with the dry run's compute buffers, and no margin where it spoke.

    `output_bytes`: the host's output buffer, which a dry run does not show. Over several devices
    what was predicted stays where it is more: there the run reserves less than a load does, by up
    to a twelfth of a device's total (b10434, measured).
    """
    parts = tuple(predicted)
    several = sum(part.device_id != HOST for part in parts) > 1
    return tuple(
        replace(
            part,
            compute_bytes=max(
                compute_bytes[part.device_id] + (output_bytes if part.device_id == HOST else 0),
                part.compute_bytes if several else 0,
            ),
            margin_bytes=0,
        )
        if part.device_id in compute_bytes
        else part
        for part in parts
    )
