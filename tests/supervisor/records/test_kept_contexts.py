"""supervisor.records.kept_contexts: what callers made models grow to, over restarts."""

from pathlib import Path

from planners.model import ModelId
from supervisor.records.journal import Journal, open_journal
from supervisor.records.journal_file import CONTEXTS
from supervisor.records.kept_contexts import KeptContexts

A, B = ModelId("a"), ModelId("b")


async def loaded(journal: Journal) -> KeptContexts:
    kept = KeptContexts(journal)
    await kept.load()
    return kept


async def test_the_largest_context_outlives_the_daemon(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        kept = await loaded(journal)
        for context in (4096, 8192, 2048):
            kept.asked(A, context)

    async with open_journal(tmp_path / "journal.db") as journal:
        again = await loaded(journal)

    assert kept.contexts == again.contexts == {A: 8192}


async def test_a_context_is_forgotten_with_its_model_or_with_all(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        kept = await loaded(journal)
        kept.asked(A, 4096)
        kept.asked(B, 8192)

        assert await kept.forget(A) == 1
        assert (await loaded(journal)).contexts == kept.contexts == {B: 8192}
        assert await kept.forget(None) == 1
        assert (await loaded(journal)).contexts == kept.contexts == {}


async def test_a_row_that_somebody_else_wrote_is_passed_over(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.write(CONTEXTS, {"model_id": "a", "at": 1.0, "context": None})

        assert (await loaded(journal)).contexts == {}
