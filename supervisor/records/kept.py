"""All that a daemon keeps on disk of what happens: journal, what that teaches, child logs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from supervisor.children.child_logs import FOLDER, ChildLogs, open_child_logs
from supervisor.records.journal import Journal, open_journal
from supervisor.records.kept_contexts import KeptContexts
from supervisor.records.launch_history import LaunchHistory


class Records(Struct, frozen=True):
    """All of them, open."""

    journal: Journal
    history: LaunchHistory
    contexts: KeptContexts
    child_logs: ChildLogs

    async def load(self) -> None:
        """Take in what earlier daemons kept: before anything is planned by it."""
        await self.history.load()
        await self.contexts.load()

    async def write_forever(self) -> None:
        """Carry all of it to disk until cancelled; open_records writes the rest at its end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.journal.write_forever(), name="journal")
            tasks.create_task(self.child_logs.write_forever(), name="child logs")

    def end_following(self) -> None:
        """Whoever follows reads what is left, and is told that it was the last."""
        self.journal.end_following()
        self.child_logs.end_following()


@asynccontextmanager
async def open_records(state_dir: Path) -> AsyncIterator[Records]:
    """The records in a state folder, empty until they are loaded. Run write_forever in it."""
    async with (
        open_journal(state_dir / "journal.db") as journal,
        open_child_logs(state_dir / FOLDER) as child_logs,
    ):
        yield Records(journal, LaunchHistory(journal), KeptContexts(journal), child_logs)
