from planners.instances.actions import Departure
from supervisor.children.ending import Ending


def test_only_the_first_wish_is_the_first() -> None:
    ending = Ending()
    assert not ending.is_asked

    assert ending.ask(Departure.ASKED, drain_s=5.0, now_s=100.0)
    assert not ending.ask(Departure.STOPPING, drain_s=5.0, now_s=100.0)

    assert ending.is_asked
    assert ending.departure is Departure.STOPPING


def test_the_shortest_drain_counts_whichever_came_first() -> None:
    ending = Ending()
    ending.ask(Departure.ASKED, drain_s=60.0, now_s=100.0)
    assert ending.left_s(now_s=101.0) == 59.0

    ending.ask(Departure.ASKED, drain_s=10.0, now_s=102.0)
    ending.ask(Departure.ASKED, drain_s=60.0, now_s=103.0)

    assert ending.left_s(now_s=104.0) == 8.0
    assert ending.left_s(now_s=113.0) < 0


def test_who_drains_is_told_of_each_wish() -> None:
    ending = Ending()
    ending.ask(Departure.ASKED, drain_s=60.0, now_s=100.0)
    ending.hurried.clear()

    ending.ask(Departure.ASKED, drain_s=1.0, now_s=101.0)

    assert ending.hurried.is_set()
