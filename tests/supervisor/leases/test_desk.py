"""One open instance's slots: each test takes and puts back, then looks at which ones are left."""

import pytest
from msgspec.structs import replace

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.leases.desk import HEIRS_S, QUESTIONS, Desk, Heir, Opening
from supervisor.leases.lease import Lease

I1, I2 = InstanceId("i1"), InstanceId("i2")
HEIRS = (Heir(I1, 0, 2, 70), Heir(I1, 1, 1, 90))
"""Of I1, whose slots 0 and 1 were restored into 2 and 1 of I2."""


def desk(*heirs: Heir, n_slots: int = 1, serves: int = 0) -> Desk:
    opening = Opening(
        I2, ModelId("m"), "/run/i2.sock", n_slots, 4096, embedding=False, serves=serves, heirs=heirs
    )
    return Desk(opening, list(range(n_slots)), opened_s=0.0, idle_since_s=0.0)


def taken(desk: Desk, *, now_s: float = 1.0, after: Lease | None = None) -> Lease:
    return desk.take(now_s=now_s, waited_s=0.0, takes_slot=True, after=after)


def of_i1(slot: int) -> Lease:
    """The lease on a slot of the child that made way."""
    return replace(taken(desk()), instance_id=I1, slot=slot)


def test_the_lowest_free_slot_is_taken_first() -> None:
    there = desk(n_slots=3)
    first, _ = taken(there), taken(there)

    there.put_back(first, now_s=2.0)

    assert [taken(there).slot, taken(there).slot] == [0, 2]
    assert not there.has_place(takes_slot=True)


def test_a_lease_that_does_not_hold_its_slot_any_more_frees_nothing() -> None:
    there = desk()
    before = taken(there)
    there.put_back(before, now_s=1.0)
    taken(there)

    assert not there.put_back(before, now_s=2.0)
    assert not there.has_place(takes_slot=True)


def test_it_is_idle_from_when_the_last_lease_was_put_back() -> None:
    there = desk(n_slots=2)
    first, second = taken(there), taken(there)

    there.put_back(first, now_s=3.0)
    assert there.idle_since_s is None
    assert there.busy.is_set()
    there.put_back(second, now_s=4.0)

    assert there.idle_since_s == 4.0
    assert there.idle.is_set()


def test_questions_have_places_of_their_own_beside_the_slots() -> None:
    there = desk()
    taken(there)

    for _ in range(QUESTIONS):
        assert there.has_place(takes_slot=False)
        assert there.take(now_s=1.0, waited_s=0.0, takes_slot=False).slot < 0

    assert not there.has_place(takes_slot=False)


@pytest.mark.parametrize(
    ("asked", "is_exact", "admitted"),
    [
        pytest.param(0, False, True, id="whatever there is"),
        pytest.param(2048, False, True, id="less than it has"),
        pytest.param(8192, False, True, id="what it may serve though it has less"),
        pytest.param(8193, False, False, id="more than it may serve"),
        pytest.param(4096, True, True, id="exactly what it has"),
        pytest.param(8192, True, True, id="exactly what it may serve"),
        pytest.param(2048, True, False, id="exactly less"),
    ],
)
def test_a_context_is_admitted_up_to_what_it_serves(
    asked: int, is_exact: bool, admitted: bool
) -> None:
    assert desk(serves=8192).admits(asked, is_exact) is admitted


def test_a_slot_is_kept_for_its_heir_while_there_is_another() -> None:
    there = desk(*HEIRS, n_slots=3)

    stranger, heir = taken(there), taken(there, after=of_i1(0))
    last = taken(there)

    assert (stranger.slot, heir.slot, last.slot) == (0, 2, 1)
    assert (stranger.restored_tokens, heir.restored_tokens, last.restored_tokens) == (0, 70, 0)


def test_an_heir_whose_slot_was_taken_finds_nothing_of_its_own() -> None:
    there = desk(*HEIRS, n_slots=3)
    stranger, other, _ = taken(there), taken(there), taken(there)
    assert (stranger.slot, other.slot) == (0, 1)
    there.put_back(other, now_s=2.0)

    late = taken(there, after=of_i1(1))

    assert (late.slot, late.restored_tokens) == (1, 0)


def test_a_slot_is_kept_no_longer_for_an_heir_who_does_not_come() -> None:
    there = desk(*HEIRS, n_slots=3)
    late_s = HEIRS_S + 0.5

    slots = [taken(there, now_s=late_s).slot for _ in range(3)]

    assert slots == [0, 1, 2]


def test_an_heir_who_comes_too_late_is_served_like_any_other() -> None:
    there = desk(*HEIRS, n_slots=3)

    late = taken(there, now_s=HEIRS_S + 0.5, after=of_i1(0))

    assert (late.slot, late.restored_tokens) == (0, 0)
