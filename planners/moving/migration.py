"""How a model moves from one launch to another: in which order, and what of its slots goes along.

    make before break   start → park → save → bridge → restore → switch → resume → stop
    break before make   hold → park → save → stop → start → bridge → restore → resume

Pure. What was measured of each way is cited as "migration": the engine's behaviour, b10434.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.model import ModelInfo
from planners.moving.slot_file import slot_memory
from planners.plan import InstanceId, LaunchPlan, Shortfall
from planners.sizes import format_size

SEAM_TOKENS = 8  # retokenized at a seam, or generated unheard: 0 to 5 were seen
_MATH = (
    "model_digest", "file_key", "lora_paths", "draft_path", "backend", "engine_id", "extra_flags",
    "n_gpu_layers", "n_cpu_moe", "type_k", "type_v", "flash_attn",
)  # fmt: skip
_UNIFIED = frozenset(("--kv-unified", "-kvu"))


class Carry(Enum):
    """What of a slot's memory the next child can use."""

    WHOLE = "whole"  # any request that begins like the saved one
    EXTENSION = "extension"  # only one that goes on where it was saved, token for token
    NOTHING = "nothing"


class Order(Enum):
    """Whether both launches are there for a moment."""

    MAKE_BEFORE_BREAK = "make-before-break"
    BREAK_BEFORE_MAKE = "break-before-make"


class Way(Enum):
    """What becomes of one slot."""

    RESTORED = "restored"  # its cache goes along
    RECOMPUTED = "recomputed"  # its text goes along, and is read again
    FINISHED = "finished"  # it cannot go on over there: it ends here first
    FORGOTTEN = "forgotten"  # an idle one that finds no place, or does not fit


class Occupied(Struct, frozen=True):
    """A slot with something in it."""

    slot: int
    n_tokens: int
    """In its cache, as far as is known; of a running one it grows."""
    is_running: bool
    at_segment_end: bool = False
    """Its reply was cut by our own max_tokens, so that it goes on exactly where it ended."""
    can_pause: bool = True
    """False for a reply that goes on nowhere but on the same math, where it is written again."""
    last_used_s: float = 0.0
    """Monotonic."""


class Carriage(Struct, frozen=True):
    """Whether caches travel between two launches, and why not."""

    carry: Carry
    reasons: tuple[str, ...]
    n_stream: int | None = None
    """The stream count that slot files must be rewritten to; None where they fit as they are."""


class SlotMove(Struct, frozen=True):
    """One slot's part."""

    slot: int
    way: Way
    to_slot: int | None
    """None where it is finished or forgotten, or waits until a slot is free over there."""
    reason: str


class Hold(Struct, frozen=True):
    """Grant no new slot of the source; who asks waits in the line."""


class Finish(Struct, frozen=True):
    """Let a reply end by itself."""

    slot: int


class Park(Struct, frozen=True):
    """Close the streams of these slots upstream, all together, and wait until they are idle."""

    slots: tuple[int, ...]


class Save(Struct, frozen=True):
    """Write a slot's file."""

    slot: int


class StartTarget(Struct, frozen=True):
    """Launch the wanted plan and wait until it is ready."""


class StopSource(Struct, frozen=True):
    """End the child that ran, and wait until its memory is back."""


class Bridge(Struct, frozen=True):
    """Rewrite a slot's file for the target's number of streams."""

    slot: int
    n_stream: int


class Restore(Struct, frozen=True):
    """Have the target read a slot's file."""

    slot: int
    to_slot: int


class Switch(Struct, frozen=True):
    """From here on, leases are the target's."""


class Resume(Struct, frozen=True):
    """Go on with these replies, all together; (slot before, slot now), None waits for a slot."""

    slots: tuple[tuple[int, int | None], ...]


class RemoveFiles(Struct, frozen=True):
    """Take these slots' files from the disk; one that waits for a slot still needs its own."""

    slots: tuple[int, ...]


Step = (
    Hold | Finish | Park | Save | StartTarget | StopSource | Bridge | Restore | Switch | Resume
    | RemoveFiles
)  # fmt: skip


class MigrationPlan(Struct, frozen=True):
    """One move of one instance."""

    instance_id: InstanceId
    wanted: LaunchPlan
    order: Order
    carriage: Carriage
    keeps_math: bool
    """The same devices compute with the same kernels: replies go on as if nothing had happened,
    and a replay gives the same text."""
    slots: tuple[SlotMove, ...]
    steps: tuple[Step, ...]
    reasons: tuple[str, ...]
    """Each with its numbers."""


def carriage(running: LaunchPlan, wanted: LaunchPlan, info: ModelInfo) -> Carriage:
    """What slot files of `running` are worth to a child of `wanted`.

    An engine of another build reads them where it knows their version; it refuses them else.
    """
    if reasons := tuple(_obstacles(running, wanted)):
        return Carriage(Carry.NOTHING, reasons)
    memory = slot_memory(info)
    if memory.n_caches == 2 and not (running.swa_full and wanted.swa_full):
        why = "its sliding windows are not kept whole, so that a restored cache would be passed by"
        return Carriage(Carry.NOTHING, (why,))
    before, after = _n_stream(running), _n_stream(wanted)
    n_stream = after if memory.n_caches and before != after else None
    told = "model, KV types and flash attention are the same"
    if n_stream is not None:
        told += f"; slot files are rewritten from {before} to {after} streams"
    if memory.has_state:
        told += "; its recurrent state cannot be cut back, so it serves exact extensions only"
        return Carriage(Carry.EXTENSION, (told,), n_stream)
    return Carriage(Carry.WHOLE, (told,), n_stream)


def _obstacles(running: LaunchPlan, wanted: LaunchPlan) -> list[str]:
    """What keeps any cache from travelling, all of it."""
    found = []
    if running.embedding or wanted.embedding:
        found.append("an embedding model keeps nothing between requests")
    if running.model_digest != wanted.model_digest or running.file_key != wanted.file_key:
        found.append("the model's file is another one")
    if running.lora_paths != wanted.lora_paths:
        found.append("its adapters change")
    if running.extra_flags != wanted.extra_flags:
        found.append("its own flags change, and what they do to a cache is not known")
    for name in ("type_k", "type_v"):
        before, after = getattr(running, name), getattr(wanted, name)
        if before != after:
            found.append(f"{name} changes from {before} to {after}")
    if running.flash_attn != wanted.flash_attn:
        after = "on" if wanted.flash_attn else "off"
        found.append(f"flash attention turns {after}, and V lies otherwise in the cache")
    if running.swa_full != wanted.swa_full:
        after = "whole" if wanted.swa_full else "cut"
        found.append(f"sliding windows are now kept {after}")
    return found


def _n_stream(plan: LaunchPlan) -> int:
    """Caches side by side: one per slot, unless the operator had them share one."""
    return 1 if not _UNIFIED.isdisjoint(plan.extra_flags) else plan.n_parallel


def keeps_math(running: LaunchPlan, wanted: LaunchPlan) -> bool:
    """True where text comes out byte for byte as it would have: the same engine, and as many layers
    on the same devices. How those are split does not matter, nor do batch, context and slots.
    """
    return all(getattr(running, name) == getattr(wanted, name) for name in _MATH) and (
        _used(running) == _used(wanted)
    )


def _used(plan: LaunchPlan) -> frozenset[DeviceId]:
    return frozenset(device_id for device_id, _, layers in plan.devices if layers)


def plan_migration(
    instance_id: InstanceId,
    *,
    running: LaunchPlan,
    wanted: LaunchPlan,
    info: ModelInfo,
    occupied: Sequence[Occupied],
    free: Mapping[DeviceId, int],
    shared: Mapping[DeviceId, int] | None = None,
) -> MigrationPlan | Shortfall:
    """The move from one plan to the other, or what is missing for it.

    `free`: bytes that may be taken now, beside the running child. A device that is not in it does
    not tell: then nothing is started beside what runs, and placement's word is taken for the rest.
    `shared`: bytes that both launches map from the same file, and hold once.
    """
    shared = shared or {}
    missing = _missing(wanted, free, given_back={}, shared=shared)
    rivals = sorted(set(running.rpc_servers) & set(wanted.rpc_servers))
    order = Order.BREAK_BEFORE_MAKE if missing or rivals else Order.MAKE_BEFORE_BREAK
    if missing:
        told = _missing(wanted, free, given_back=_given_back(running), shared=shared)
        if still := {device_id: n for device_id, n in told.items() if device_id in free}:
            why = "the other plan does not even fit once the running one has gone"
            return Shortfall(wanted.model_id, still, why)
    travel = carriage(running, wanted, info)
    is_alike = keeps_math(running, wanted)
    moves = _moves(occupied, wanted, travel, is_alike=is_alike)
    return MigrationPlan(
        instance_id=instance_id,
        wanted=wanted,
        order=order,
        carriage=travel,
        keeps_math=is_alike,
        slots=moves,
        steps=_steps(order, moves, occupied, travel),
        reasons=(
            _why_order(wanted, free, missing, rivals),
            *travel.reasons,
            *(move.reason for move in moves),
        ),
    )


def _missing(
    wanted: LaunchPlan,
    free: Mapping[DeviceId, int],
    *,
    given_back: Mapping[DeviceId, int],
    shared: Mapping[DeviceId, int],
) -> dict[DeviceId, int]:
    """Bytes that `wanted` lacks, by device; all of them where a device does not tell."""
    found: dict[DeviceId, int] = {}
    for part in wanted.predicted:
        device_id = part.device_id
        needed = part.upper_bytes - min(shared.get(device_id, 0), part.weights_bytes)
        room = free.get(device_id, 0) + given_back.get(device_id, 0)
        if needed > room:
            found[device_id] = needed - room
    return found


def _given_back(running: LaunchPlan) -> dict[DeviceId, int]:
    """What is free once it has gone, and is not now: mapped weights count as available anyway."""
    return {
        part.device_id: part.total_bytes - (part.weights_bytes if part.device_id == HOST else 0)
        for part in running.predicted
    }


def _why_order(
    wanted: LaunchPlan,
    free: Mapping[DeviceId, int],
    missing: Mapping[DeviceId, int],
    rivals: Sequence[str],
) -> str:
    if rivals and not missing:  # ggml-rpc-server: a second one would wait for ever while it loads
        return (
            f"the RPC server {rivals[0]} serves one child at a time, so the running one goes first"
        )
    if not missing:
        told = ", ".join(
            f"{format_size(part.upper_bytes)} of {format_size(free.get(part.device_id, 0))} free"
            f" on {part.device_id}"
            for part in wanted.predicted
        )
        return f"both fit side by side{f': {told}' if told else ''}"
    told = ", ".join(
        f"{format_size(n)} on {device_id}"
        if device_id in free
        else f"{device_id} does not tell what is free"
        for device_id, n in missing.items()
    )
    return f"both do not fit side by side, so the running one goes first: missing {told}"


def _moves(
    occupied: Sequence[Occupied], wanted: LaunchPlan, travel: Carriage, *, is_alike: bool
) -> tuple[SlotMove, ...]:
    """What becomes of each slot: running replies first, then the conversations used last."""
    found: list[SlotMove] = []
    taken: set[int] = set()
    ranked = sorted(occupied, key=lambda seen: (not seen.is_running, -seen.last_used_s, seen.slot))
    for seen in ranked:
        way, reason = _way(seen, wanted, travel, is_alike=is_alike)
        to_slot = None
        if way in (Way.RESTORED, Way.RECOMPUTED):
            to_slot = _free_slot(seen.slot, taken, wanted.n_parallel)
            if to_slot is None and not seen.is_running:
                way = Way.FORGOTTEN
                reason = f"all {wanted.n_parallel} slots over there are taken"
            elif to_slot is None:
                reason += f"; it waits for one of {wanted.n_parallel} slots"
        if to_slot is not None:
            taken.add(to_slot)
        found.append(SlotMove(seen.slot, way, to_slot, f"slot {seen.slot}: {reason}"))
    return tuple(sorted(found, key=lambda move: move.slot))


def _way(
    seen: Occupied, wanted: LaunchPlan, travel: Carriage, *, is_alike: bool
) -> tuple[Way, str]:
    told = f"{seen.n_tokens} tokens"
    if seen.is_running and not (seen.can_pause or is_alike):
        return Way.FINISHED, "its reply may come to other words over there, so it ends first"
    if seen.n_tokens >= wanted.context:
        short = f"{told} do not fit the new context of {wanted.context}"
        return (Way.FINISHED, short) if seen.is_running else (Way.FORGOTTEN, short)
    # What a client saw ends before the saved state does, unless we ended the reply ourselves.
    has_more = seen.is_running and not seen.at_segment_end
    if travel.carry is Carry.WHOLE or (travel.carry is Carry.EXTENSION and not has_more):
        return Way.RESTORED, f"{told} go along"
    if seen.is_running:
        return Way.RECOMPUTED, f"{told} are computed again"
    return Way.FORGOTTEN, f"{told} of an idle conversation are computed again when it goes on"


def _free_slot(slot: int, taken: set[int], n_parallel: int) -> int | None:
    """Its own number where that is free, else the lowest."""
    own_first = (slot, *range(n_parallel))
    return next((n for n in own_first if n < n_parallel and n not in taken), None)


def _steps(
    order: Order, moves: Sequence[SlotMove], occupied: Sequence[Occupied], travel: Carriage
) -> tuple[Step, ...]:
    running = {seen.slot for seen in occupied if seen.is_running}
    parked = tuple(m.slot for m in moves if m.slot in running and m.way is not Way.FINISHED)
    saved = [move for move in moves if move.way is Way.RESTORED]
    at_once = [move for move in saved if move.to_slot is not None]
    cut: list[Step] = [Hold()]
    cut += [Finish(move.slot) for move in moves if move.way is Way.FINISHED]
    if parked:
        cut.append(Park(parked))
    cut += [Save(move.slot) for move in saved]
    put: list[Step] = []
    if travel.n_stream is not None:
        put += [Bridge(move.slot, travel.n_stream) for move in saved]
    put += [Restore(move.slot, move.to_slot) for move in at_once if move.to_slot is not None]
    put.append(Switch())
    if parked:
        slots = {move.slot: move.to_slot for move in moves}
        put.append(Resume(tuple((slot, slots[slot]) for slot in parked)))
    end: list[Step] = [RemoveFiles(tuple(move.slot for move in at_once))] if at_once else []
    if order is Order.MAKE_BEFORE_BREAK:
        return (StartTarget(), *cut, *put, StopSource(), *end)
    return (*cut, StopSource(), StartTarget(), *put, *end)


def is_carried(*, restored_tokens: int, cached_tokens: int, prompt_tokens: int) -> bool:
    """Whether a child used what it restored, by the counts of the first request after it.

    `prompt_tokens`: of the whole prompt, cached ones included. A 200 to the restore proves
    nothing: caches with sliding windows are taken and passed by.
    """
    usable = min(restored_tokens, prompt_tokens - 1)
    return cached_tokens >= usable - SEAM_TOKENS


def shape_of(plan: LaunchPlan) -> LaunchShape:
    """What decides a plan's bytes."""
    return LaunchShape(
        n_ctx=plan.n_ctx,
        n_parallel=plan.n_parallel,
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        type_k=plan.type_k,
        type_v=plan.type_v,
        flash_attn=plan.flash_attn,
        embedding=plan.embedding,
        swa_full=plan.swa_full,
        n_cpu_moe=plan.n_cpu_moe,
        split=tuple((device_id, layers) for device_id, _, layers in plan.devices),
    )
