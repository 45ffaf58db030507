from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.settings import ContextPolicy
from supervisor.leases.wishes import Wishes
from supervisor.records.journal import open_journal
from supervisor.records.kept_contexts import KeptContexts
from tests.fakes.machines import RULES, served

MODEL = served()


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[KeptContexts]:
    async with open_journal(tmp_path / "journal.db") as journal:
        yield KeptContexts(journal)


@pytest.fixture
def wishes(kept: KeptContexts) -> Wishes:
    return Wishes(kept)


def wanted(wishes: Wishes, asked: int | None, policy: ContextPolicy = ContextPolicy.RATCHET) -> int:
    return wishes.context(MODEL, asked, policy=policy, rules=replace(RULES, context=4096))


@pytest.mark.parametrize("asked", [None, 0, -1])
async def test_who_asks_for_no_context_waits_for_none(wishes: Wishes, asked: int | None) -> None:
    assert wanted(wishes, asked) == 0


async def test_a_ratchet_keeps_the_largest_and_no_more_than_the_model_was_trained_for(
    wishes: Wishes, kept: KeptContexts
) -> None:
    assert wanted(wishes, 8192) == 8192
    assert wanted(wishes, 2048) == 2048
    assert kept.contexts == {MODEL.model_id: 8192}
    assert wanted(wishes, 10**30) == MODEL.info.n_ctx_train


async def test_under_client_a_size_is_no_smaller_than_configured_and_not_kept(
    wishes: Wishes, kept: KeptContexts
) -> None:
    assert wanted(wishes, 2048, ContextPolicy.CLIENT) == 4096
    assert wanted(wishes, 8192, ContextPolicy.CLIENT) == 8192
    assert kept.contexts == {}


async def test_under_fixed_nobody_waits_for_a_context(wishes: Wishes) -> None:
    assert wanted(wishes, 8192, ContextPolicy.FIXED) == 0


async def test_a_keep_alive_holds_until_it_is_forgotten(wishes: Wishes) -> None:
    wishes.keep_alive(MODEL.model_id, 7.0)
    assert wishes.keep_alive_s(MODEL) == 7.0
    wishes.forget_keep_alive(MODEL.model_id)

    assert wishes.keep_alive_s(MODEL) == MODEL.settings.keep_alive_s
