"""The largest context that callers of each model asked for, kept in the journal over restarts.

The loop's alone; the journal's thread writes. Which policy heeds it is the fleet's to know.
"""

from collections.abc import Mapping
from time import time

import msgspec

from planners.model import ModelId
from supervisor.records.journal import Journal
from supervisor.records.journal_file import CONTEXTS, Row

MAX_MODELS = 10_000  # the journal's bound too


class KeptContexts:
    """Tokens by model."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._contexts: dict[ModelId, int] = {}

    async def load(self) -> None:
        """Take in what earlier daemons kept."""
        for row in await self._journal.rows(CONTEXTS, limit=MAX_MODELS):
            if (kept := _kept(row)) is not None:
                self._contexts[ModelId(kept.model_id)] = kept.context

    @property
    def contexts(self) -> Mapping[ModelId, int]:
        """The largest context ever asked for, by model."""
        return self._contexts

    def asked(self, model_id: ModelId, context: int) -> None:
        """Keep `context` where it is the largest."""
        if context <= self._contexts.get(model_id, 0):
            return
        self._contexts[model_id] = context
        self._journal.write(CONTEXTS, {"model_id": model_id, "at": time(), "context": context})

    async def forget(self, model_id: ModelId | None) -> int:
        """Drop what was kept of a model, or all; of how many models something went."""
        gone = [name for name in self._contexts if model_id in (None, name)]
        for name in gone:
            del self._contexts[name]
        if model_id is None:
            await self._journal.delete(CONTEXTS)
        else:
            await self._journal.delete(CONTEXTS, model_id=model_id)
        return len(gone)


class _Kept(msgspec.Struct):
    model_id: str
    context: int


def _kept(row: Row) -> _Kept | None:
    """None for a row that somebody else wrote."""
    try:
        return msgspec.convert(row, _Kept)
    except msgspec.MsgspecError:
        return None
