"""The line is pure: who joins, who is served, and how long anybody may have to wait."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.waiting.line import Line, Priority, most_grants, retry_after_s

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


@dataclass(eq=False)
class Place:
    """One request in line."""

    caller: str
    priority: Priority = NORMAL


def anybody(_: Place) -> bool:
    return True


def standing(*places: Place) -> Line[Place]:
    line = Line[Place]()
    for place in places:
        line.join(place)
    return line


def served(line: Line[Place], grants: int) -> list[str]:
    return [place.caller for _ in range(grants) if (place := line.next(anybody)) is not None]


def test_callers_take_turns_however_many_requests_each_has() -> None:
    line = standing(*[Place("batch") for _ in range(500)], Place("chat"))

    assert served(line, 3) == ["batch", "chat", "batch"]


def test_a_callers_own_requests_keep_their_order() -> None:
    first, second = Place("a"), Place("a")
    line = standing(first, second)

    assert [line.next(anybody), line.next(anybody)] == [first, second]


def test_priorities_share_the_turns_by_weight_and_none_is_left_out() -> None:
    crowds = [Place(p.value, p) for p in Priority for _ in range(100)]

    turns = Counter(served(standing(*crowds), 42))

    assert turns == {"high": 32, "normal": 8, "low": 2}


def test_a_more_urgent_caller_is_next_even_behind_a_crowd() -> None:
    line = standing(*[Place("batch", LOW) for _ in range(500)])
    served(line, 100)

    line.join(Place("chat"))

    assert served(line, 1) == ["chat"]


def test_a_priority_that_nobody_asked_for_saves_up_no_turns() -> None:
    line = standing(*[Place("chat") for _ in range(300)])
    served(line, 200)

    for _ in range(100):
        line.join(Place("batch", LOW))

    assert served(line, 10).count("batch") == 2


def test_who_is_not_admitted_is_passed_over_and_keeps_its_place() -> None:
    waits, goes = Place("a"), Place("b")
    line = standing(waits, goes)

    assert line.next(lambda place: place is not waits) is goes
    assert line.next(anybody) is waits


def test_a_priority_that_was_passed_over_saves_up_no_turns() -> None:
    low = [Place("low", LOW) for _ in range(50)]
    line = standing(*low, *[Place("normal") for _ in range(300)])
    for _ in range(200):
        line.next(lambda place: place.priority is NORMAL)

    assert served(line, 6).count("low") == 2


def test_who_left_is_not_served() -> None:
    gone, stays = Place("a"), Place("a")
    line = standing(gone, stays)

    line.leave(gone)
    line.leave(gone)

    assert len(line) == 1
    assert line.next(anybody) is stays


def test_the_order_foretold_is_the_order_served() -> None:
    places = [Place(str(n % 5), tuple(Priority)[n % 3]) for n in range(60)]
    line = standing(*places)
    served(line, 7)

    foretold = list(line.in_order())

    assert foretold == [line.next(anybody) for _ in range(53)]
    assert not line


def test_the_surplus_of_a_line_is_the_last_of_the_greediest_caller() -> None:
    batch = [Place("batch") for _ in range(5)]
    line = standing(*batch, Place("other"))
    newest = Place("chat")
    line.join(newest)

    assert line.surplus(newest) is batch[-1]


def test_the_newest_goes_where_nobody_has_more_places() -> None:
    line = standing(Place("a"), Place("b"))
    newest = Place("c", HIGH)
    line.join(newest)

    assert line.surplus(newest) is newest


@pytest.mark.parametrize(
    ("waiting", "held_s", "n_slots", "told_s"),
    [
        pytest.param(10, 2.0, 4, 5.0, id="the line's length in slots' times"),
        pytest.param(1, 0.01, 4, 1.0, id="a second at least"),
        pytest.param(500, 30.0, 1, 60.0, id="no more than clients heed"),
    ],
)
def test_when_to_try_again(waiting: int, held_s: float, n_slots: int, told_s: float) -> None:
    assert retry_after_s(waiting, held_s=held_s, n_slots=n_slots) == told_s


CALLERS = [(name + p.value, p) for p in Priority for name in "abc"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(CALLERS)),
        st.tuples(st.just("leave"), st.integers(0, 1000)),
        st.tuples(st.just("grant"), st.just(0)),
    ),
    max_size=300,
)


@given(steps=STEPS)
def test_whoever_is_first_of_its_callers_is_served_within_the_bound(
    steps: list[tuple[str, object]],
) -> None:
    line = Line[Place]()
    left: dict[Place, int] = {}  # those first of their caller's → grants they may have to wait

    def settle() -> None:
        firsts: dict[str, Place] = {}
        for place in line:
            firsts.setdefault(place.caller, place)
        for place in set(left) - set(firsts.values()):
            del left[place]
        for place in firsts.values():
            rivals = {p.caller for p in firsts.values() if p.priority is place.priority}
            left.setdefault(place, most_grants(place.priority, callers=len(rivals)))

    def grant() -> None:
        place = line.next(anybody)
        left.pop(place, None) if place else None
        for waiting in left:
            left[waiting] -= 1
            assert left[waiting] > 0

    for step, told in steps:
        if step == "join":
            line.join(Place(*told))  # type: ignore[misc]
        elif step == "leave" and line:
            places = list(line)
            line.leave(places[int(str(told)) % len(places)])
        elif step == "grant":
            grant()
        settle()
    while line:
        grant()
        settle()
