"""Carries out migrations: a model's child makes way for another one, and its replies go on there.

    make before break   target loads beside ─ cut ─ restore ─ open ─ source stops
    break before make   cut ─ source stops ─ memory comes back ─ target loads ─ restore ─ open
    cut: grant no slot ─ let end what cannot pause ─ close all streams ─ save the slots
    the target fails → the source goes on as if nothing had been, or is launched again by its plan

What is decided about it is planners.moving.migration's; how each reply goes on,
proxy.continuity's.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic

import structlog
from msgspec import Struct

from planners.hardware import HOST, DeviceId
from planners.instances.actions import Departure
from planners.model import ModelId
from planners.moving.migration import (
    MigrationPlan,
    Occupied,
    Order,
    SlotMove,
    Way,
    plan_migration,
    shape_of,
)
from planners.moving.slot_file import SlotFileError, slot_file_bytes, slot_memory
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from supervisor.children.launch import Launch
from supervisor.children.llama import client_of, slots_seen
from supervisor.instance import Instance, Trial
from supervisor.leases.lease import Lease
from supervisor.leases.lease_book import Heir
from supervisor.moving.move import (
    Moved,
    MoveFailed,
    MoveSeen,
    Stage,
    Step,
    slots_told,
    streams_told,
)
from supervisor.moving.slots import SavedSlot, SlotDoor, SlotError
from supervisor.race import found_first

ANSWER_S = 5.0  # /slots waits for the decode step that runs
SLOT_S = 60.0  # for one slot's file to be written or read
ROOM_S = 3.0  # for the memory of what was stopped to come back; then the launch itself shows
ROOM_LOOK_S = 0.1  # cadence of looking
WRITTEN_MEANWHILE = 1024  # tokens between the look at a slot and its file
MOST_REMEMBERED = 4096  # sockets of children that made way

log = structlog.get_logger(__name__)


class Migrations:
    """Moves of running instances, one of a model at a time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._moves: dict[ModelId, _Move] = {}
        self._left: dict[str, str] = {}

    @property
    def moving(self) -> frozenset[ModelId]:
        """Models that nobody else may launch, stop or evict now."""
        return frozenset(self._moves)

    def seen(self) -> tuple[MoveSeen, ...]:
        """Those under way."""
        return tuple(move.seen() for move in self._moves.values())

    def why_left(self, lease: Lease) -> str | None:
        """Why the child behind a lease made way; None where it did not."""
        return self._left.get(lease.socket_path)

    def end(self, model_id: ModelId, departure: Departure, *, reason: str, drain_s: float) -> bool:
        """Has whoever takes the model's place end too, once it is there. False: it does not move.

        Between two launches there may be no instance that could be told.
        """
        move = self._moves.get(model_id)
        if move is not None:
            move.end(departure, reason=reason, drain_s=drain_s)
        return move is not None

    async def move(
        self, source: Instance, wanted: LaunchPlan, *, launch_key: str, reason: str
    ) -> Moved:
        """Has `wanted` take the place of what runs. Raises MoveFailed; nothing is lost then.

        `launch_key`: what `wanted` was planned from, whatever is wanted once it is launched.
        """
        model_id = source.model_id
        if model_id in self._moves:
            raise MoveFailed(model_id=model_id, reason="it is being moved already")
        if not source.is_serving:
            raise MoveFailed(model_id=model_id, reason="it is not ready")
        move = _Move(self._stage, source, wanted, launch_key, reason, self._leave)
        self._moves[model_id] = move
        try:
            done = await found_first(move.go(), self._stage.stopping.wait())
        finally:
            del self._moves[model_id]
            move.remove_files()
        if done is None:
            raise MoveFailed(model_id=model_id, reason="the daemon is stopping")
        return done

    def _leave(self, socket_path: str, reason: str) -> None:
        self._left[socket_path] = reason
        if len(self._left) > MOST_REMEMBERED:
            del self._left[next(iter(self._left))]


class _EndTold(Struct, frozen=True):
    """What a model was told that moves."""

    departure: Departure
    reason: str
    drain_s: float


class _Move:
    """One of them."""

    def __init__(
        self,
        stage: Stage,
        source: Instance,
        wanted: LaunchPlan,
        launch_key: str,
        reason: str,
        leave: Callable[[str, str], None],
    ) -> None:
        self._stage, self._source, self._wanted, self._reason = stage, source, wanted, reason
        self._launch_key = launch_key
        self._leave = leave
        self._running = source.plan
        self._model_id = source.model_id
        self._step = Step.LOADING
        self._order: Order | None = None
        self._began_s = monotonic()
        self._free: Mapping[DeviceId, int] = {}
        self._n_stream: int | None = None
        self._running_slots: frozenset[int] = frozenset()  # as it was cut
        self._n_restored = 0
        self._is_cut = False
        self._lasting = source  # whoever runs on in the end
        self._end_told: _EndTold | None = None
        self._saved: dict[int, tuple[SlotMove, SavedSlot]] = {}
        self._ids: dict[int, tuple[int, ...]] = {}
        self._bytes = 0

    def seen(self) -> MoveSeen:
        """It, as it is now."""
        return MoveSeen(
            self._model_id, self._step, self._order, self._reason, self._began_s, self._wanted
        )

    def end(self, departure: Departure, *, reason: str, drain_s: float) -> None:
        """The model is not to stay."""
        self._end_told = _EndTold(departure, reason, drain_s)

    async def go(self) -> Moved:
        """All of it. Raises MoveFailed."""
        self._free = await self._stage.free(self._wanted)
        plan = await self._planned()
        if isinstance(plan, Shortfall):
            raise self._failed(str(plan))
        self._order = plan.order
        self._record(
            "migration.begun",
            reason="; ".join((self._reason, *plan.reasons)),
            order=plan.order.value,
            streams=sum(slot.is_running for slot in await self._occupied()),
            plan=self._wanted.digest,
        )
        if plan.order is Order.MAKE_BEFORE_BREAK:
            await self._make_before_break()
        else:
            await self._break_before_make()
        return self._done(plan)

    def remove_files(self) -> None:
        """What was saved is in the target, or of no use any more."""
        folders = {self._source.slot_dir}
        for _, saved in self._saved.values():
            self._stage.shelf.remove(saved)
            folders.add(saved.path.parent)
        for folder in folders - {self._lasting.slot_dir}:
            with suppress(OSError):  # gone with its child
                folder.rmdir()

    # the two orders

    async def _make_before_break(self) -> None:
        target = self._launched(self._wanted, Trial(self._taken_over), self._reason)
        if await target.until_settled():
            self._lasting = target
            self._stop_source()
            self._end_as_told()
            return
        why = target.why_ended_for_good()
        if self._is_cut and self._source.is_serving:
            self._source.reopen(self._own_heirs())
        raise self._failed(why)

    async def _break_before_make(self) -> None:
        await self._cut()
        self._step = Step.STOPPING
        self._stop_source()
        await self._source.until_over()
        await self._room()
        self._give_up_if_unwanted()
        self._step = Step.LOADING
        target = self._launched(self._wanted, Trial(self._restored), self._reason)
        if await target.until_settled():
            self._lasting = target
            self._end_as_told()
            return
        self._give_up_if_unwanted()
        why = target.why_ended_for_good()
        self._step = Step.RETURNING
        back = Trial(self._restored, is_last=False)
        again = self._launched(self._running, back, f"not moved: {why}")
        self._lasting = again
        await again.until_settled()
        self._end_as_told()
        raise self._failed(why)

    def _launched(self, plan: LaunchPlan, trial: Trial, reason: str) -> Instance:
        key = self._launch_key if plan is self._wanted else self._source.launch_key
        return self._stage.launch(plan, key, self._source, trial, reason)

    def _stop_source(self) -> None:
        self._source.stop(f"it moved: {self._reason}", Departure.MOVED, drain_s=0.0)

    def _give_up_if_unwanted(self) -> None:
        """Raises MoveFailed where the model is to end, and nobody waits for the rest of a reply."""
        if self._end_told is not None and not self._running_slots:
            raise self._failed(self._end_told.reason)

    def _end_as_told(self) -> None:
        if (told := self._end_told) is not None:
            self._lasting.stop(told.reason, told.departure, drain_s=told.drain_s)

    async def _room(self) -> None:
        """Waits until the target's room is there, as far as devices tell, for ROOM_S at most."""
        until_s = monotonic() + ROOM_S
        while monotonic() < until_s:
            free = await self._stage.free(self._wanted)
            if all(free.get(p.device_id, p.upper_bytes) >= p.upper_bytes for p in self._predicted):
                return
            await asyncio.sleep(ROOM_LOOK_S)

    @property
    def _predicted(self) -> tuple[DeviceBytes, ...]:
        return self._wanted.predicted

    # what becomes of the slots

    async def _planned(self) -> MigrationPlan | Shortfall:
        served = self._stage.served(self._model_id)
        if served is None:
            raise self._failed("it is no longer offered")
        plan = plan_migration(
            self._source.instance_id,
            running=self._running,
            wanted=self._wanted,
            info=served.info,
            occupied=await self._occupied(),
            free=self._free,
            shared=_shared(self._running, self._wanted),
        )
        if isinstance(plan, MigrationPlan):
            self._n_stream = plan.carriage.n_stream
        return plan

    async def _occupied(self) -> tuple[Occupied, ...]:
        """Slots with something in them, as far as the child tells."""
        held = {lease.slot: lease for lease in self._held()}
        told = await self._tokens()
        return tuple(
            Occupied(
                slot=slot,
                n_tokens=told.get(slot, 0),
                is_running=slot in held,
                can_pause=held[slot].can_pause if slot in held else True,
            )
            for slot in sorted({*held, *(slot for slot, n in told.items() if n)})
        )

    async def _tokens(self) -> dict[int, int]:
        """Tokens in each slot's cache; {} where the child does not tell in time."""
        async with client_of(self._source.socket_path, timeout_s=ANSWER_S) as client:
            return dict(await slots_seen(client, restored=self._source.restored_tokens))

    def _held(self) -> tuple[Lease, ...]:
        """Leases that have a slot."""
        leases = self._stage.book.held(self._source.instance_id)
        return tuple(lease for lease in leases if lease.slot >= 0)

    async def _cut(self) -> None:
        """From here on nothing runs on the source; what it knew is in files."""
        self._step = Step.CUTTING
        book, source = self._stage.book, self._source
        book.shut(source.instance_id)
        self._is_cut = True
        plan = await self._planned()
        # That it does not fit was said before; here it is the slots that count.
        moves = plan.slots if isinstance(plan, MigrationPlan) else ()
        await self._end([m.slot for m in moves if m.way is Way.FINISHED])
        self._running_slots = frozenset(lease.slot for lease in self._held())
        self._leave(source.socket_path, f"it moved: {self._reason}")
        self._stage.park(source.socket_path)
        book.close(source.instance_id)
        await self._save([m for m in moves if m.way is Way.RESTORED and m.to_slot is not None])

    async def _end(self, slots: list[int]) -> None:
        """Lets replies end by themselves, for fleet.finish_timeout at most."""
        leases = [lease for lease in self._held() if lease.slot in slots]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stage.settings().finish_s):
                for lease in leases:
                    await self._stage.book.until_back(lease)

    async def _save(self, moves: list[SlotMove]) -> None:
        served = self._stage.served(self._model_id)
        if served is None or not moves:
            return
        if not self._source.engine.saves_slots:
            self._note_lost(f"{self._source.engine.path} saves no slots")
            return
        shape, context = shape_of(self._running), self._running.context
        seen = await self._tokens()
        if not seen:  # it hangs, or is gone: what it knew is computed again
            self._note_lost("the process that ran does not answer")
            return
        async with client_of(self._source.socket_path, timeout_s=None) as client:
            door = SlotDoor(client, self._source.slot_dir)
            for move in moves:
                n_tokens = min(context, seen.get(move.slot, context) + WRITTEN_MEANWHILE)
                expected = slot_file_bytes(served.info, shape, n_tokens=n_tokens)
                try:
                    saved = await self._stage.shelf.save(
                        door, move.slot, expected_bytes=expected, within_s=SLOT_S
                    )
                except (SlotError, OSError) as exc:
                    self._note_lost(exc)
                    continue
                self._saved[move.slot] = move, saved
                self._bytes += saved.n_bytes
                if move.slot in self._running_slots:
                    with suppress(SlotFileError, OSError):  # its text is read as it stands then
                        self._ids[move.slot] = await self._stage.shelf.ids(saved)

    async def _taken_over(self, launch: Launch) -> tuple[Heir, ...]:
        """The target has loaded beside the source: the cut, and what comes along."""
        if self._source.is_serving:
            await self._cut()
        return await self._restored(launch)

    async def _restored(self, launch: Launch) -> tuple[Heir, ...]:
        """What a child of `launch` took over."""
        self._step = Step.RESTORING if self._step is not Step.RETURNING else self._step
        heirs = []
        async with client_of(launch.socket_path, timeout_s=None) as client:
            door = SlotDoor(client, launch.slot_dir)
            for slot, (move, saved) in tuple(self._saved.items()):
                to_slot = move.to_slot if launch.plan is self._wanted else slot
                if to_slot is None:
                    continue
                try:
                    saved = await self._fitting(saved, launch)
                    self._saved[slot] = move, saved
                    await self._stage.shelf.restore(door, to_slot, saved, within_s=SLOT_S)
                except (SlotError, SlotFileError, OSError) as exc:
                    self._note_lost(exc)
                    continue
                launch.restored_tokens[to_slot] = saved.n_tokens
                heirs.append(self._heir(slot, to_slot, saved))
        self._n_restored = len(heirs)
        return self._awaited(heirs)

    async def _fitting(self, saved: SavedSlot, launch: Launch) -> SavedSlot:
        """A file as the child of `launch` reads it, in its folder."""
        served = self._stage.served(self._model_id)
        if self._n_stream is None or served is None:
            return self._stage.shelf.moved(saved, launch.slot_dir)
        is_back = launch.plan is self._running
        n_stream = self._running.n_parallel if is_back else self._n_stream
        memory = slot_memory(served.info)
        return await self._stage.shelf.bridge(
            saved, memory, n_stream=n_stream, folder=launch.slot_dir
        )

    def _own_heirs(self) -> tuple[Heir, ...]:
        """Of a source that goes on: each slot still knows its reply."""
        return self._awaited(
            self._heir(slot, slot, saved) for slot, (_, saved) in self._saved.items()
        )

    def _heir(self, slot: int, to_slot: int, saved: SavedSlot) -> Heir:
        ids = self._ids.get(slot, ())
        return Heir(self._source.instance_id, slot, to_slot, saved.n_tokens, ids)

    def _awaited(self, heirs: Iterable[Heir]) -> tuple[Heir, ...]:
        """Those whose callers wait: an idle conversation's slot is for whoever comes next."""
        return tuple(heir for heir in heirs if heir.slot in self._running_slots)

    # what is told of it

    def _done(self, plan: MigrationPlan) -> Moved:
        moved = Moved(
            model_id=self._model_id,
            order=plan.order,
            streams=len(self._running_slots),
            slots=self._n_restored,
            moved_bytes=self._bytes,
            took_s=round(monotonic() - self._began_s, 3),
            keeps_math=plan.keeps_math,
        )
        told = (
            f"{self._reason}: {plan.order.value}, {moved.took_s:.1f} s, "
            f"{streams_told(moved.streams)}, {slots_told(moved.slots, moved.moved_bytes)}"
        )
        self._record(
            "migration.done",
            reason=told,
            order=plan.order.value,
            streams=moved.streams,
            slots=moved.slots,
            moved_bytes=moved.moved_bytes,
            took_s=moved.took_s,
        )
        return moved

    def _failed(self, why: str) -> MoveFailed:
        self._record("migration.failed", reason=f"{self._reason}: {why}")
        return MoveFailed(model_id=self._model_id, reason=why)

    def _note_lost(self, why: object) -> None:
        self._record("migration.recomputes", reason=str(why))

    def _record(self, kind: str, *, reason: str, **facts: str | float) -> None:
        instance_id = self._source.instance_id
        log.info(kind, model_id=self._model_id, instance_id=instance_id, reason=reason, **facts)
        self._stage.journal.record(
            kind, model_id=self._model_id, instance_id=instance_id, reason=reason, **facts
        )


def _shared(running: LaunchPlan, wanted: LaunchPlan) -> dict[DeviceId, int]:
    """Bytes that both map from the same file."""
    if running.file_key != wanted.file_key:
        return {}
    ours = {part.device_id: part.weights_bytes for part in running.predicted}
    return {HOST: ours.get(HOST, 0)}
