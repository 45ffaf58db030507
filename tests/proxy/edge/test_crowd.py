import pytest
from structlog.typing import EventDict

from proxy.edge.crowd import ANSWERS, TOLD_S, Crowd, CrowdLimits


def test_one_address_takes_no_more_than_its_share() -> None:
    crowd = Crowd(CrowdLimits(in_all=100, per_address=2))

    entered = [crowd.enter("203.0.113.7") for _ in range(4)]

    assert entered == [True, True, False, False]
    assert crowd.enter("203.0.113.8")


def test_all_together_are_no_more_than_the_limit() -> None:
    crowd = Crowd(CrowdLimits(in_all=3, per_address=2))

    entered = [crowd.enter(f"203.0.113.{n}") for n in range(5)]

    assert entered == [True, True, True, False, False]


def test_who_leaves_makes_room() -> None:
    crowd = Crowd(CrowdLimits(in_all=1, per_address=1))
    crowd.enter("203.0.113.7")

    crowd.leave("203.0.113.7")

    assert crowd.enter("203.0.113.7")
    assert len(crowd) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "", "::ffff:127.0.0.1"])
def test_this_machine_has_no_share_of_its_own(address: str) -> None:
    crowd = Crowd(CrowdLimits(in_all=3, per_address=1))

    assert [crowd.enter(address) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
    ],
)
def test_who_counts_as_one(first: str, second: str, is_one: bool) -> None:
    crowd = Crowd(CrowdLimits(in_all=9, per_address=1))
    crowd.enter(first)

    assert crowd.enter(second) is not is_one


def test_of_those_turned_away_a_few_a_second_are_told_and_the_log_once_a_minute(
    served: list[EventDict],
) -> None:
    crowd = Crowd(CrowdLimits(in_all=0, per_address=0))

    told = [crowd.turn_away(100.0) for _ in range(ANSWERS + 1)]
    later = crowd.turn_away(101.0)
    crowd.turn_away(100.0 + TOLD_S)

    assert told == [True] * ANSWERS + [False]
    assert later
    assert [event["turned_away"] for event in served] == [1, ANSWERS + 2]
