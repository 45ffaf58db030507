"""inferenceosd.signals: real signals, sent to this very process."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from inferenceosd.signals import SIGNALS, Signals, ignore

WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Handlers and mask are the test runner's again; what is pending is dropped."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    ignore()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_asked_once_it_stops_and_asked_twice_it_hurries(number: signal.Signals) -> None:
    signals = Signals()
    with signals.heeded():
        send(number)
        async with asyncio.timeout(WITHIN_S):
            await signals.stop.wait()
        assert not signals.hurry.is_set()

        send(number)

        async with asyncio.timeout(WITHIN_S):
            await signals.hurry.wait()


async def test_many_edits_in_a_row_are_one_reload() -> None:
    signals = Signals()
    with signals.heeded():
        for _ in range(3):
            send(signal.SIGHUP)
            await asyncio.sleep(0.01)  # one after the other, as an editor's

        async with asyncio.timeout(WITHIN_S):
            await signals.until_reload()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await signals.until_reload()
        assert not signals.stop.is_set()


async def test_an_edit_after_a_reload_is_another_one() -> None:
    signals = Signals()
    with signals.heeded():
        for _ in range(2):
            send(signal.SIGHUP)
            async with asyncio.timeout(WITHIN_S):
                await signals.until_reload()


async def test_what_comes_after_the_daemon_ends_it_in_no_thread() -> None:
    over = threading.Event()
    elsewhere = threading.Thread(target=over.wait, args=(WITHIN_S,))
    elsewhere.start()  # before anything is blocked, as a probe that hangs
    try:
        with Signals().heeded():
            pass

        for number in SIGNALS:
            send(number)
            signal.pthread_kill(elsewhere.ident or 0, number)

        assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_IGN}
    finally:
        over.set()
        elsewhere.join()
