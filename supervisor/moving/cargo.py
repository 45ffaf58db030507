"""What a child knew, slot by slot: read out into files, and into the child that takes its place.

What cannot be carried is told and computed again; it fails no move.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from planners.moving.migration import Occupied, SlotMove, shape_of
from planners.moving.slot_file import SlotFileError, slot_file_bytes, slot_memory
from planners.plan import LaunchPlan
from supervisor.children.launch import Launch
from supervisor.children.llama import client_of, slots_seen
from supervisor.instance import Instance
from supervisor.leases.desk import Heir
from supervisor.leases.lease import Lease
from supervisor.moving.move import Stage
from supervisor.moving.slots import SavedSlot, SlotDoor, SlotError

ANSWER_S = 5.0  # /slots waits for the decode step that runs
SLOT_S = 60.0  # for one slot's file to be written or read
WRITTEN_MEANWHILE = 1024  # tokens between the look at a slot and its file


class Cargo:
    """Of one move: the files of the source's slots, on their way to another child."""

    def __init__(
        self,
        stage: Stage,
        source: Instance,
        wanted: LaunchPlan,
        *,
        lost: Callable[[object], None],
    ) -> None:
        """`lost` is told why a slot's reply has to be computed again."""
        self._stage, self._source, self._lost = stage, source, lost
        self._running, self._wanted = source.plan, wanted
        self._model_id = source.model_id
        self.running_slots: frozenset[int] = frozenset()
        """At work as the source was cut."""
        self.n_stream: int | None = None
        """Of the target's files, where they are other ones than the source's."""
        self.n_restored = 0
        self.n_bytes = 0
        """Of all files."""
        self._saved: dict[int, tuple[SlotMove, SavedSlot]] = {}
        self._ids: dict[int, tuple[int, ...]] = {}

    def remove_files(self, *, lasting: Path) -> None:
        """What was saved is in the target, or of no use; of the folders only `lasting` stays."""
        folders = {self._source.slot_dir}
        for _, saved in self._saved.values():
            self._stage.shelf.remove(saved)
            folders.add(saved.path.parent)
        for folder in folders - {lasting}:
            with suppress(OSError):  # gone with its child
                folder.rmdir()

    async def occupied(self) -> tuple[Occupied, ...]:
        """Slots with something in them, as far as the child tells."""
        held = {lease.slot: lease for lease in self.held()}
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

    def held(self) -> tuple[Lease, ...]:
        """Leases that have a slot."""
        leases = self._stage.book.held(self._source.instance_id)
        return tuple(lease for lease in leases if lease.slot >= 0)

    async def save(self, moves: list[SlotMove]) -> None:
        """Writes these slots of the source to files, as far as it does so in time."""
        served = self._stage.served(self._model_id)
        if served is None or not moves:
            return
        if not self._source.engine.saves_slots:
            self._lost(f"{self._source.engine.path} saves no slots")
            return
        shape, context = shape_of(self._running), self._running.context
        seen = await self._tokens()
        if not seen:  # it hangs, or is gone: what it knew is computed again
            self._lost("the process that ran does not answer")
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
                    self._lost(exc)
                    continue
                self._saved[move.slot] = move, saved
                self.n_bytes += saved.n_bytes
                if move.slot in self.running_slots:
                    with suppress(SlotFileError, OSError):  # its text is read as it stands then
                        self._ids[move.slot] = await self._stage.shelf.ids(saved)

    async def restore(self, launch: Launch) -> tuple[Heir, ...]:
        """Has a child of `launch` read what fits it, and tells whose callers wait for it."""
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
                    self._lost(exc)
                    continue
                launch.restored_tokens[to_slot] = saved.n_tokens
                heirs.append(self._heir(slot, to_slot, saved))
        self.n_restored = len(heirs)
        return self._awaited(heirs)

    async def _fitting(self, saved: SavedSlot, launch: Launch) -> SavedSlot:
        """A file as the child of `launch` reads it, in its folder."""
        served = self._stage.served(self._model_id)
        if self.n_stream is None or served is None:
            return self._stage.shelf.moved(saved, launch.slot_dir)
        is_back = launch.plan is self._running
        n_stream = self._running.n_parallel if is_back else self.n_stream
        memory = slot_memory(served.info)
        return await self._stage.shelf.bridge(
            saved, memory, n_stream=n_stream, folder=launch.slot_dir
        )

    def own_heirs(self) -> tuple[Heir, ...]:
        """Of a source that goes on: each slot still knows its reply."""
        return self._awaited(
            self._heir(slot, slot, saved) for slot, (_, saved) in self._saved.items()
        )

    def _heir(self, slot: int, to_slot: int, saved: SavedSlot) -> Heir:
        ids = self._ids.get(slot, ())
        return Heir(self._source.instance_id, slot, to_slot, saved.n_tokens, ids)

    def _awaited(self, heirs: Iterable[Heir]) -> tuple[Heir, ...]:
        """Those whose callers wait: an idle conversation's slot is for whoever comes next."""
        return tuple(heir for heir in heirs if heir.slot in self.running_slots)
