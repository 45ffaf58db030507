"""The book is synchronous: each test calls, then looks at who was granted what."""

import asyncio

import pytest
from msgspec.structs import replace

from planners.model import ModelId
from planners.plan import InstanceId
from planners.view import InLine
from planners.waiting.line import Priority
from supervisor.leases.desk import QUESTIONS, Heir, Opening, Waiter
from supervisor.leases.lease import LineFull, ModelUnavailable, Stopping
from supervisor.leases.lease_book import LeaseBook

M = ModelId("m")
I1, I2 = InstanceId("i1"), InstanceId("i2")


def opening(instance_id: InstanceId = I1, *, n_slots: int = 1) -> Opening:
    return Opening(
        instance_id=instance_id,
        model_id=M,
        socket_path=f"/run/{instance_id}.sock",
        n_slots=n_slots,
        context=4096,
        embedding=False,
    )


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook(max_waiting=3)


def ask(book: LeaseBook, caller: str = "a", *, now_s: float = 0.0) -> Waiter:
    return book.ask(M, caller=caller, now_s=now_s)


def is_served(waiter: Waiter) -> bool:
    return waiter.granted.done()


async def test_a_free_slot_is_granted_at_once(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)

    lease = ask(book, now_s=5.0).granted.result()

    assert (lease.instance_id, lease.slot, lease.load_s) == (I1, 0, 0.0)
    assert book.running(I1) == 1


async def test_a_slot_is_taken_without_a_wait_only_where_nobody_waits_for_it(
    book: LeaseBook,
) -> None:
    assert book.take(M, now_s=0.0) is None
    book.open(opening(n_slots=2), now_s=0.0)

    lease = book.take(M, now_s=1.0)
    assert lease is not None
    assert (lease.slot, lease.load_s, book.has_unserved) == (0, 0.0, False)
    assert book.take(M, now_s=1.0, context=8192) is None

    larger = book.ask(M, caller="a", now_s=1.0, context=8192)
    assert book.has_unserved
    assert book.take(M, now_s=1.0) is None  # its turn comes after theirs

    book.leave(larger, now_s=2.0)
    assert not book.has_unserved
    assert book.take(M, now_s=2.0) is not None


async def test_who_waits_for_a_slot_of_an_open_child_lacks_none(book: LeaseBook) -> None:
    nobody = book.ask(M, caller="a", now_s=0.0)
    assert book.lacks(M)

    book.open(opening(n_slots=1), now_s=1.0)
    assert nobody.granted.done()
    book.ask(M, caller="b", now_s=1.0)
    assert not book.has_unserved

    book.shut(I1)
    assert book.has_unserved


async def test_a_stopping_daemon_gives_no_slot_away(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    book.stop()

    with pytest.raises(Stopping):
        book.take(M, now_s=1.0)


async def test_the_line_moves_when_the_instance_opens(book: LeaseBook) -> None:
    first, second = ask(book, now_s=1.0), ask(book, now_s=2.0)

    book.open(opening(), now_s=4.0)

    assert first.granted.result().load_s == 3.0
    assert not is_served(second)


async def test_a_slot_given_back_goes_to_the_next_in_line(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    lease = ask(book).granted.result()
    waiting = ask(book)

    book.give_back(lease, now_s=1.0)

    assert waiting.granted.result().slot == lease.slot


async def test_who_leaves_before_the_end_is_counted_once(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    book.give_back(ask(book).granted.result(), now_s=1.0)
    assert book.departures(I1) == 0
    lease = ask(book).granted.result()

    book.give_back(lease, now_s=2.0, is_done=False)
    book.give_back(lease, now_s=2.0, is_done=False)

    assert book.departures(I1) == 1


async def test_giving_back_twice_takes_the_slot_from_nobody(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    lease = ask(book).granted.result()
    book.give_back(lease, now_s=1.0)
    ask(book)

    book.give_back(lease, now_s=2.0)

    assert book.running(I1) == 1
    assert not is_served(ask(book))


async def test_callers_take_turns(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    lease = ask(book, "batch").granted.result()
    batch = [ask(book, "batch"), ask(book, "batch")]
    chat = ask(book, "chat")

    book.give_back(lease, now_s=1.0)
    assert is_served(batch[0])
    book.give_back(batch[0].granted.result(), now_s=2.0)

    assert is_served(chat)
    assert not is_served(batch[1])


async def test_a_full_line_takes_nobody(book: LeaseBook) -> None:
    waiters = [ask(book) for _ in range(3)]

    with pytest.raises(LineFull) as full:
        ask(book)

    assert full.value.waiting == 3
    assert book.waiting(M) == len(waiters)


async def test_a_full_line_makes_room_for_who_has_less_of_it(book: LeaseBook) -> None:
    batch = [ask(book, "batch") for _ in range(3)]

    chat = ask(book, "chat")

    assert isinstance(batch[-1].granted.exception(), LineFull)
    assert not is_served(chat)
    assert (book.waiting(M), book.place(chat)) == (3, 2)


async def test_a_full_line_tells_when_to_come_back_by_how_long_slots_are_held(
    book: LeaseBook,
) -> None:
    book.open(opening(), now_s=0.0)
    book.give_back(ask(book, now_s=0.0).granted.result(), now_s=4.0)
    for _ in range(4):
        ask(book, now_s=5.0)

    with pytest.raises(LineFull) as full:
        ask(book, now_s=5.0)

    assert full.value.retry_after_s == 3 * 4.0


async def test_an_urgent_caller_goes_first(book: LeaseBook) -> None:
    ask(book, "batch"), ask(book, "batch")
    chat = book.ask(M, caller="chat", now_s=1.0, priority=Priority.HIGH)

    book.open(opening(), now_s=2.0)

    assert is_served(chat)


async def test_a_line_is_told_by_caller_and_place(book: LeaseBook) -> None:
    ask(book, "batch", now_s=1.0), ask(book, "batch", now_s=2.0), ask(book, "chat", now_s=3.0)

    (line,) = book.lines(now_s=5.0)

    assert (line.model_id, line.waiting, line.oldest_wait_s) == (M, 3, 4.0)
    assert line.callers == (
        InLine("batch", Priority.NORMAL, waiting=2, place=1),
        InLine("chat", Priority.NORMAL, waiting=1, place=2),
    )


async def test_a_caller_who_leaves_the_line_is_skipped(book: LeaseBook) -> None:
    gone, stays = ask(book), ask(book)

    book.leave(gone, now_s=1.0)
    book.open(opening(), now_s=2.0)

    assert gone.granted.cancelled()
    assert is_served(stays)


async def test_a_caller_who_leaves_as_it_is_granted_gives_the_slot_back(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    waiter = ask(book)

    book.leave(waiter, now_s=1.0)

    assert book.running(I1) == 0
    assert book.idle_since_s(I1) == 1.0


async def test_nobody_left_in_line_is_no_demand(book: LeaseBook) -> None:
    book.leave(ask(book), now_s=1.0)

    assert book.demand(now_s=2.0) == {}


async def test_demand_tells_the_longest_wait(book: LeaseBook) -> None:
    ask(book, now_s=1.0)
    ask(book, now_s=3.0)

    demand = book.demand(now_s=5.0)[M]

    assert (demand.waiting, demand.oldest_wait_s) == (2, 4.0)


async def test_a_shut_instance_grants_no_more_but_its_leases_go_on(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    lease = ask(book).granted.result()

    book.shut(I1)

    assert not is_served(ask(book))
    assert book.running(I1) == 1
    book.give_back(lease, now_s=1.0)
    assert book.running(I1) == 0


@pytest.mark.parametrize(
    "successor", [I1, I2], ids=["the same instance, restarted", "another instance"]
)
async def test_a_lease_of_a_closed_instance_frees_no_slot_of_its_successor(
    book: LeaseBook, successor: InstanceId
) -> None:
    book.open(opening(), now_s=0.0)
    old = ask(book).granted.result()
    book.close(I1)
    book.open(opening(successor), now_s=1.0)
    ask(book)

    book.give_back(old, now_s=2.0)

    assert book.running(successor) == 1
    assert not is_served(ask(book))


async def test_an_instance_is_idle_once_its_last_lease_is_back(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    leases = [ask(book).granted.result() for _ in range(2)]
    idle = asyncio.create_task(book.until_idle(I1))

    book.give_back(leases[0], now_s=1.0)
    await asyncio.sleep(0)
    assert not idle.done()
    book.give_back(leases[1], now_s=2.0)

    async with asyncio.timeout(5):
        await idle


async def test_an_instance_is_busy_while_any_lease_is_held(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    busy = asyncio.create_task(book.until_busy(I1))
    await asyncio.sleep(0)
    assert not busy.done()

    leases = [ask(book).granted.result() for _ in range(2)]

    async with asyncio.timeout(5):
        await busy
    book.give_back(leases[0], now_s=1.0)
    async with asyncio.timeout(5):
        await book.until_busy(I1)
    book.give_back(leases[1], now_s=2.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await book.until_busy(I1)


def test_a_refusal_shows_the_last_lines_of_the_process() -> None:
    refusal = ModelUnavailable(
        model_id=M, reason="it crashed", retry_after_s=1.0, log_tail=("loading", "cut short")
    )

    assert str(refusal).splitlines() == [
        "m cannot be served: it crashed",
        "The last lines of its log:",
        "loading",
        "cut short",
    ]


async def test_a_lease_ends_with_its_child_and_not_with_its_instances_next_one(
    book: LeaseBook,
) -> None:
    book.open(opening(), now_s=0.0)
    lease = ask(book).granted.result()
    gone = asyncio.create_task(book.until_gone(lease))
    await asyncio.sleep(0)
    assert not gone.done()

    book.close(I1)
    book.open(replace(opening(), socket_path="/run/i1-2.sock"), now_s=1.0)

    async with asyncio.timeout(5):
        await gone
        await book.until_gone(lease)


async def test_a_line_that_takes_nobody_leaves_no_demand_behind(book: LeaseBook) -> None:
    book.max_waiting = 0

    with pytest.raises(LineFull):
        ask(book)

    assert book.demand(now_s=1.0) == {}


async def test_refusing_ends_every_wait_with_the_reason(book: LeaseBook) -> None:
    waiters = [ask(book), ask(book)]
    error = ModelUnavailable(model_id=M, reason="bad file", retry_after_s=None)

    assert book.refuse(M, error) == 2

    for waiter in waiters:
        with pytest.raises(ModelUnavailable, match="bad file"):
            await waiter.granted
    assert book.waiting(M) == 0


async def test_a_stopping_daemon_takes_nobody_and_ends_every_wait(book: LeaseBook) -> None:
    waiter = ask(book)

    book.stop()

    with pytest.raises(Stopping):
        await waiter.granted
    with pytest.raises(Stopping):
        ask(book)


async def test_slots_are_never_held_twice_whatever_the_order(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    held = []
    for turn in range(50):
        waiter = ask(book, f"caller {turn % 3}", now_s=turn)
        if is_served(waiter):
            held.append(waiter.granted.result())
            assert len({lease.slot for lease in held}) == len(held) <= 2
        else:
            book.leave(waiter, now_s=turn)
            book.give_back(held.pop(turn % len(held)), now_s=turn)


def wanting(book: LeaseBook, context: int, *, is_exact: bool = False, at_s: float = 0.0) -> Waiter:
    return book.ask(M, caller="a", now_s=at_s, context=context, is_exact=is_exact)


async def test_a_context_no_larger_than_the_loaded_one_is_served(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)

    assert is_served(wanting(book, 4096))
    assert is_served(wanting(book, 2048))
    assert book.demand(now_s=1.0) == {}


async def test_a_larger_context_waits_and_holds_up_nobody_else(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)

    large, small = wanting(book, 8192), ask(book)

    assert not is_served(large)
    assert is_served(small)
    assert book.demand(now_s=1.0)[M].context == 8192


async def test_more_than_can_be_had_is_served_once_that_is_allowed(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    large = wanting(book, 8192)

    book.allow(I1, 8192, now_s=1.0)

    assert large.granted.result().context == 4096
    assert not is_served(wanting(book, 9000))


async def test_the_largest_context_in_line_is_the_one_to_load(book: LeaseBook) -> None:
    wanting(book, 8192), wanting(book, 16384), ask(book)

    assert book.demand(now_s=1.0)[M].context == 16384


async def test_an_exact_context_is_served_by_that_size_alone(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)

    assert is_served(wanting(book, 4096, is_exact=True))
    assert not is_served(wanting(book, 2048, is_exact=True, at_s=1.0))
    assert not is_served(wanting(book, 8192, is_exact=True, at_s=2.0))
    assert book.demand(now_s=3.0)[M].context == 2048


async def test_a_question_does_not_wait_for_a_slot(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    ask(book)

    questions = [book.ask(M, caller="b", now_s=1.0, takes_slot=False) for _ in range(2)]

    leases = [question.granted.result() for question in questions]
    assert all(lease.slot < 0 for lease in leases)
    assert book.running(I1) == 3
    for lease in leases:
        book.give_back(lease, now_s=2.0)
    assert book.running(I1) == 1
    assert not is_served(ask(book))


async def test_a_question_waits_for_the_load_with_the_others(book: LeaseBook) -> None:
    first = ask(book)
    question = book.ask(M, caller="a", now_s=1.0, takes_slot=False)
    assert book.demand(now_s=2.0)[M].waiting == 2

    book.open(opening(), now_s=3.0)

    assert is_served(first)
    assert question.granted.result().slot < 0


async def test_so_many_questions_at_once_and_the_rest_in_line(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    asked = [book.ask(M, caller="a", now_s=0.0, takes_slot=False) for _ in range(QUESTIONS + 1)]

    assert [is_served(question) for question in asked[-2:]] == [True, False]
    assert is_served(ask(book))
    book.give_back(asked[0].granted.result(), now_s=1.0)

    assert is_served(asked[-1])


def inherited(*, n_slots: int = 3) -> Opening:
    """The opening of I2 after I1, whose slots 0 and 1 were restored into 2 and 1."""
    heirs = (Heir(I1, 0, 2, 70), Heir(I1, 1, 1, 90))
    return replace(opening(I2, n_slots=n_slots), heirs=heirs)


async def test_whose_reply_was_begun_gets_the_slot_that_knows_it_before_who_asked_earlier(
    book: LeaseBook,
) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    old = [ask(book).granted.result() for _ in range(2)]
    earlier = [ask(book, "b", now_s=1.0) for _ in range(2)]
    book.close(I1)
    heirs = [book.ask(M, caller="a", now_s=2.0, after=lease) for lease in old]

    book.open(inherited(), now_s=3.0)

    granted = [waiter.granted.result() for waiter in heirs]
    assert [(lease.slot, lease.restored_tokens) for lease in granted] == [(2, 70), (1, 90)]
    assert [is_served(waiter) for waiter in earlier] == [True, False]
    assert earlier[0].granted.result().restored_tokens == 0


async def test_who_was_cut_off_by_a_move_finds_a_place_in_a_full_line(book: LeaseBook) -> None:
    book.open(opening(), now_s=0.0)
    old = ask(book).granted.result()
    for n in range(3):
        ask(book, f"b{n}")
    book.close(I1)

    waiter = book.ask(M, caller="a", now_s=1.0, after=old)
    book.open(replace(opening(I2), heirs=(Heir(I1, 0, 0, 5),)), now_s=2.0)

    assert waiter.granted.result().restored_tokens == 5


async def test_the_end_of_one_lease_can_be_waited_for(book: LeaseBook) -> None:
    book.open(opening(n_slots=2), now_s=0.0)
    first, second = (ask(book).granted.result() for _ in range(2))
    back = asyncio.create_task(book.until_back(first))
    await asyncio.sleep(0)

    book.give_back(second, now_s=1.0)
    await asyncio.sleep(0)
    assert not back.done()
    book.give_back(first, now_s=2.0)

    async with asyncio.timeout(5):
        await back
        await book.until_back(first)
