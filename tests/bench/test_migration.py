from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from bench.migration import cost
from bench.migration.account import Account, Round, read_ledger, write_ledger
from bench.migration.questions import OTHERS, TEXTS, Form, drawn
from bench.migration.waves import Wave, waves

HIT = Round("moves", seed=1, number=0, streams=8, ways={"continue": 5, "replay": 1})


def test_a_ledger_gives_back_the_rounds_of_one_campaign_and_no_line_that_was_cut_short(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    for done in (HIT, replace(HIT, what="kills"), replace(HIT, seed=2), replace(HIT, number=1)):
        write_ledger(path, done)
    path.write_bytes(path.read_bytes() + b'{"what":"moves","seed":1,"num')

    assert read_ledger(path, "moves", 1) == [HIT, replace(HIT, number=1)]
    assert read_ledger(tmp_path / "another", "moves", 1) == []


def test_an_account_adds_its_rounds_up_and_shows_what_went_wrong() -> None:
    account = Account("moves", (HIT, replace(HIT, number=1, failed=("/v1/messages: lost",))))

    assert (account.streams, account.hit) == (16, 12)
    assert "2 rounds, 16 streams, 12 hit (10 continue, 2 replay): 1 failed" in account.text()
    assert "failed: /v1/messages: lost" in account.text()


@pytest.mark.parametrize(
    "spoilt",
    [
        replace(HIT, failed=("a stream",)),
        replace(HIT, silent=("a stream",)),
        replace(HIT, differing=("a stream",)),
        replace(HIT, misframed=("a stream",)),
        replace(HIT, miscounted=("a stream",)),
        replace(HIT, lost_caches=("a conversation",)),
    ],
    ids=["failed", "silent", "other words", "misframed", "miscounted", "read again"],
)
def test_one_stream_that_is_not_as_it_should_be_spoils_an_account(spoilt: Round) -> None:
    assert Account("moves", (HIT,)).is_good
    assert not Account("moves", (HIT, spoilt)).is_good


def test_one_in_a_hundred_may_come_to_other_words_and_where_the_math_is_another_each() -> None:
    rounds = tuple(replace(HIT, number=n) for n in range(17))
    one = (replace(rounds[0], differing=("a stream",)), *rounds[1:])

    assert Account("moves", one).is_good
    assert not Account("moves", one[:16]).is_good
    assert Account("vulkan", one[:1], keeps_math=False).is_good


def test_texts_that_break_characters_are_told_apart_from_others() -> None:
    account = Account("moves", (replace(HIT, broken=("an emoji",)),))

    assert account.is_good
    assert "1 more of broken characters" in account.text()
    assert {q.form for q in TEXTS} == {Form.TEXT}
    assert {q.form for q in OTHERS} == set(Form) - {Form.TEXT}


def test_a_seed_draws_the_same_questions_of_every_dialect() -> None:
    told = [[drawn(chance, with_others=True).key for _ in range(200)] for chance in _twins()]

    assert told[0] == told[1]
    assert {key.partition(" ")[0] for key in told[0]} == {
        "/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages", "/v1/responses",
        "/api/chat", "/api/generate",
    }  # fmt: skip


def test_a_seed_makes_the_same_waves_none_higher_than_the_peak() -> None:
    made = [[next(each) for _ in range(20)] for each in map(_waves, _twins())]

    assert made[0] == made[1]
    assert all(800 <= wave.bytes <= 1000 for wave in made[0])
    assert len({wave.bytes for wave in made[0]}) > 1


def test_what_is_kept_of_a_stream_takes_less_than_twice_its_bytes() -> None:
    told = cost.measured(rounds=2, chunks=500)

    assert 0 < told.held_ratio <= 2
    assert "µs of a processor per chunk" in cost.report(told)


def _twins() -> tuple[Random, Random]:
    return Random(1), Random(1)


def _waves(chance: Random) -> Iterator[Wave]:
    return waves(chance, peak_bytes=1000)


@pytest.mark.parametrize(
    ("rounds", "due", "says"),
    [
        ((HIT,), 6, "PASS moves: 6 of 6 streams hit in 1 rounds, 0 failed"),
        ((HIT,), 7, "FAIL moves: 6 of 7"),
        ((replace(HIT, silent=("a stream",)),), 6, "FAIL moves"),
        ((replace(HIT, differing=("a stream",)),), 6, "83.3 % byte for byte"),
    ],
    ids=["as promised", "too few", "a silent end", "other words"],
)
def test_a_bar_holds_in_a_line(rounds: tuple[Round, ...], due: int, says: str) -> None:
    told = Account("moves", rounds).bar(due)

    assert says in told
    assert "\n" not in told
