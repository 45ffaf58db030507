"""Idle conversations, from the end of one child of a model to the next one: their caches on disk.

    an idle child is told to end ─ its slots are saved ─ … ─ the next one loads ─ they are restored
Oldest ones make room within the quota; what the next launch cannot read is dropped. Kept for as
long as the daemon runs: what a killed one left is removed at the next start.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from planners.instances.actions import Departure
from planners.model import ModelId, ServedModel
from planners.moving.migration import Carriage, Carry, carriage, shape_of
from planners.moving.slot_file import SlotFileError, slot_file_bytes, slot_memory
from planners.plan import LaunchPlan
from planners.sizes import format_size
from supervisor.children.launch import Launch
from supervisor.children.llama import client_of, slots_seen
from supervisor.moving.slots import NoRoomForSlot, SavedSlot, SlotDoor, SlotError, SlotShelf
from supervisor.records.journal import Journal

ANSWER_S = 2.0  # of an idle child
KEEP_S = 10.0  # for all slots of a child: who waits for its memory waits for this
MOST_BYTES = 2 << 30  # of one child's: more takes longer to write than KEEP_S on many a disk
LEAST_TOKENS = 64  # fewer are read again in no time
KEPT = (
    Departure.UNUSED, Departure.ROOM, Departure.MEMORY, Departure.ASKED, Departure.CONTEXT,
    Departure.SETTINGS,
)  # fmt: skip
"""Ends after which the model may come back to the same conversations."""

log = structlog.get_logger(__name__)


class _Kept(Struct, frozen=True):
    """One slot's conversation."""

    saved: SavedSlot
    slot: int
    plan: LaunchPlan
    """Of the child that wrote it."""


class KeptSlots:
    """All of them, by model; the oldest model first."""

    def __init__(
        self,
        shelf: SlotShelf,
        folder: Path,
        *,
        journal: Journal,
        served: Callable[[ModelId], ServedModel | None],
        is_on: Callable[[], bool],
    ) -> None:
        self._shelf, self._folder, self._journal = shelf, folder, journal
        self._served, self._is_on = served, is_on
        self._kept: dict[ModelId, list[_Kept]] = {}

    async def keep(self, launch: Launch, departure: Departure) -> None:
        """Saves what an idle child knows, before it ends; within KEEP_S."""
        served = self._served(launch.plan.model_id)
        if departure not in KEPT or served is None or launch.plan.embedding or not self._is_on():
            return
        self._drop(launch.plan.model_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_S):
                await self._save_all(launch, served)

    async def restore(self, launch: Launch) -> None:
        """Gives a child that has loaded what its model's last one knew; within KEEP_S."""
        kept = self._kept.pop(launch.plan.model_id, [])
        served = self._served(launch.plan.model_id)
        try:
            if kept and served is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_S):
                        await self._restore_all(launch, kept, served)
        finally:
            for each in kept:
                self._shelf.remove(each.saved)

    def clear(self) -> None:
        """Removes all of it: the daemon ends."""
        for model_id in tuple(self._kept):
            self._drop(model_id)
        with suppress(OSError):
            self._folder.rmdir()

    def _drop(self, model_id: ModelId) -> None:
        for each in self._kept.pop(model_id, []):
            self._shelf.remove(each.saved)

    async def _save_all(self, launch: Launch, served: ServedModel) -> None:
        if not launch.saves_slots:
            return
        async with client_of(launch.socket_path, timeout_s=ANSWER_S) as client:
            told = await slots_seen(client, restored=launch.restored_tokens)
        worth = [(slot, n) for slot, n in told if n >= LEAST_TOKENS]
        if not worth:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:  # a disk without room: they are read again then
            log.warning("conversations.lost", model_id=launch.plan.model_id, reason=str(exc))
            return
        shape, kept, spare_bytes = shape_of(launch.plan), list[_Kept](), MOST_BYTES
        self._kept[launch.plan.model_id] = kept
        async with client_of(launch.socket_path, timeout_s=None) as client:
            door = SlotDoor(client, launch.slot_dir)
            for slot, n_tokens in worth:
                expected = slot_file_bytes(served.info, shape, n_tokens=n_tokens + LEAST_TOKENS)
                if expected > spare_bytes:
                    continue
                if (saved := await self._saved(door, slot, expected, of=launch)) is not None:
                    kept.append(_Kept(saved, slot, launch.plan))
                    spare_bytes -= saved.n_bytes
        self._record("conversations.kept", launch, kept)

    async def _saved(
        self, door: SlotDoor, slot: int, expected_bytes: int, *, of: Launch
    ) -> SavedSlot | None:
        """The file of one slot, out of its child's folder; older models' make room for it."""
        while True:
            try:
                saved = await self._shelf.save(
                    door, slot, expected_bytes=expected_bytes, within_s=KEEP_S
                )
                return self._shelf.moved(saved, self._folder)
            except NoRoomForSlot:
                oldest = next((m for m in self._kept if m != of.plan.model_id), None)
                if oldest is None:
                    return None
                self._drop(oldest)
            except (SlotError, OSError):  # it is read again then
                return None

    async def _restore_all(self, launch: Launch, kept: list[_Kept], served: ServedModel) -> None:
        restored = []
        async with client_of(launch.socket_path, timeout_s=None) as client:
            door = SlotDoor(client, launch.slot_dir)
            for each in tuple(kept):
                travel = carriage(each.plan, launch.plan, served.info)
                is_useful = travel.carry is not Carry.NOTHING
                if not is_useful or each.slot >= launch.plan.n_parallel:
                    continue
                if each.saved.n_tokens >= launch.plan.context:
                    continue
                with suppress(SlotError, SlotFileError, OSError):
                    saved = await self._fitting(each, launch, travel, served)
                    kept[kept.index(each)] = _Kept(saved, each.slot, each.plan)
                    await self._shelf.restore(door, each.slot, saved, within_s=KEEP_S)
                    restored.append(_Kept(saved, each.slot, each.plan))
                    launch.restored_tokens[each.slot] = saved.n_tokens
        self._record("conversations.restored", launch, restored)

    async def _fitting(
        self, each: _Kept, launch: Launch, travel: Carriage, served: ServedModel
    ) -> SavedSlot:
        if travel.n_stream is None:
            return self._shelf.moved(each.saved, launch.slot_dir)
        memory, folder = slot_memory(served.info), launch.slot_dir
        return await self._shelf.bridge(each.saved, memory, n_stream=travel.n_stream, folder=folder)

    def _record(self, kind: str, launch: Launch, kept: list[_Kept]) -> None:
        if not kept:
            return
        n_tokens = sum(each.saved.n_tokens for each in kept)
        n_bytes = sum(each.saved.n_bytes for each in kept)
        reason = f"{len(kept)} conversations, {n_tokens} tokens, {format_size(n_bytes)}"
        model_id = launch.plan.model_id
        log.info(kind, model_id=model_id, reason=reason)
        self._journal.record(kind, model_id=model_id, reason=reason)
