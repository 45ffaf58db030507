"""The dry run of a plan, its pure half: its command line, what it says.

`llama-server --fit on` builds the model and its context without memory, prints what each device
would take, and only then loads. Killed at that line it has read no weight (common/fit.cpp, b10434).
Weights, KV cache and state stay those of the closed form, which are exact; the dry run's compute
buffers replace the predicted ones. On several devices it is no oracle: it reserves more there than
a load does on one, and less on another, by up to a fifth of a compute buffer (b10434, measured),
where a graph that is known is drawn to the rounding. Of one that is not, it still tells more.
Remote devices are left alone: a killed client has been seen to take a ggml-rpc-server with it.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from planners.argv import VERBOSITY, child_argv
from planners.backends import Engine
from planners.errors import PlanError
from planners.graph.buffers import BufferKind, BufferLine, measured
from planners.graph.fallback import is_remote
from planners.hardware import HOST, DeviceId
from planners.layout.dry_runs import Reserved, Told
from planners.plan import DeviceBytes, LaunchPlan
from planners.sizes import MIB

FIT_FLAGS = frozenset({"--fit", "--fit-target"})
LINE_MIB = 0.01  # by so much two buffers of one device may be off, each printed to 0.01 MiB
TABLE_MIB = 1.0  # the table cuts what is less
SEVERAL_SHARE = 0.2  # of a compute buffer, over several devices: up to 18 percent were measured
_HEAD = "memory breakdown [MiB]"
# Bounded repeats: a child's log is not ours to trust.
_ROW = re.compile(
    r"\|\s{1,8}- (\S{1,40})[^|]{0,200}\|[^|]{0,60}?\b\d{1,9} = {1,9}\d{1,9} \+ {1,9}\d{1,9}"
    r" \+ {1,9}(\d{1,9})\b"
)


def measures(engine: Engine) -> bool:
    """Whether the engine can say what a launch takes before it loads."""
    return engine.flags >= FIT_FLAGS


def preflight_argv(plan: LaunchPlan, *, engine: Engine, socket_path: str) -> tuple[str, ...]:
    """The command line of a dry run: the plan's own, told to measure first.

    Raises PlanError where the engine has no `--fit`.
    """
    if not measures(engine):
        raise PlanError(f"{engine.path} cannot measure a plan before it loads: it has no --fit")
    argv = list(child_argv(plan, engine=engine, socket_path=socket_path, slot_dir=""))
    argv = _without(argv, "--slot-save-path", "--fit", *VERBOSITY)
    verbosity = next(name for name in VERBOSITY if name in engine.flags)
    told = (verbosity, str(engine.log.sizes_verbosity))
    # Explicit layers make the fitting stop at its first probe; a target of 0 has nothing changed.
    tail = ("--fit", "on", "--fit-target", "0", *told, "--no-warmup")
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
        if buffer is not None and buffer.kind is BufferKind.COMPUTE:
            self._buffers.append(buffer)
        if not self._in_table:
            self._in_table = _HEAD in line
        elif (row := _ROW.search(line[:500])) is not None:
            self._table[row[1]] = int(row[2]) * MIB
        else:
            self.is_complete = bool(self._table)

    def told(self, plan: LaunchPlan) -> Told:
        """The compute buffer of each device of the plan; to the MiB where no line is exact."""
        names = {name: device for device, name, _ in plan.devices} | {"Host": HOST}
        found = {
            names[name]: Reserved(size, size + int(TABLE_MIB * MIB))
            for name, size in self._table.items()
            if name in names
        }
        off = int(LINE_MIB * MIB)
        for part in measured(self._buffers, plan):
            if size := part.compute_bytes:
                found[part.device_id] = Reserved(max(0, size - off), size + off)
        return found


def is_told_of(devices: Iterable[DeviceId], *, is_known: bool) -> bool:
    """Whether a dry run tells more of a load on these devices than the prediction does.

    HOST may be one of them. `is_known`: whether the graph that was drawn is the model's own; of
    another one, a dry run tells more over several devices, too.
    """
    others = set(devices) - {HOST}
    return (len(others) <= 1 or not is_known) and not any(map(is_remote, others))


def corrected(
    predicted: Iterable[DeviceBytes],
    told: Told,
    *,
    output_bytes: int,
    growth_bytes: int,
    is_known: bool = True,
) -> tuple[DeviceBytes, ...]:
    """`predicted` with the dry run's compute buffers, and no more margin than its print leaves.

    Within what the print leaves open the prediction counts. `output_bytes`: the host's output
    buffer, which a dry run does not show; `growth_bytes`: by how much that may grow later.
    """
    parts = tuple(predicted)
    devices = [part.device_id for part in parts]
    if not is_told_of(devices, is_known=is_known):
        return parts
    if len({*devices} - {HOST}) > 1:
        told = {device: _widened(reserved) for device, reserved in told.items()}
    return as_told(parts, told, output_bytes=output_bytes, growth_bytes=growth_bytes)


def _widened(reserved: Reserved) -> Reserved:
    """A buffer of one of several devices, which the load reserves a little larger or smaller."""
    least = int(reserved.least_bytes * (1 - SEVERAL_SHARE))
    return Reserved(least, int(reserved.most_bytes * (1 + SEVERAL_SHARE)))


def as_told(
    parts: Iterable[DeviceBytes], told: Told, *, output_bytes: int, growth_bytes: int
) -> tuple[DeviceBytes, ...]:
    """`corrected` for any devices, whether or not the dry run is to be believed there."""
    return tuple(
        _corrected(part, told[part.device_id], output_bytes=output_bytes, growth_bytes=growth_bytes)
        if part.device_id in told
        else part
        for part in parts
    )


def _corrected(
    part: DeviceBytes, reserved: Reserved, *, output_bytes: int, growth_bytes: int
) -> DeviceBytes:
    output, growth = (output_bytes, growth_bytes) if part.device_id == HOST else (0, 0)
    compute = reserved.nearest_bytes(part.compute_bytes - output)
    margin = reserved.most_bytes - compute + growth
    return replace(part, compute_bytes=compute + output, margin_bytes=margin)
