"""The program's first lines: signals are heeded from here on, before anything else is imported."""

import signal
import sys


class Awaited:
    """Takes a signal that comes before anybody listens, so that it ends nothing and is not lost."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: object) -> None:
        """Notes that it came."""
        self.came = True


def came_early(number: signal.Signals) -> bool:
    """Whether a signal came since `heed` that nobody has taken up."""
    handler = signal.getsignal(number)
    return isinstance(handler, Awaited) and handler.came


def heed() -> None:
    """A SIGHUP waits for the daemon; a SIGTERM is a stop that was asked for, however far it is."""
    signal.signal(signal.SIGHUP, Awaited())
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> None:
    sys.exit(0)


def main() -> None:
    """`inferenceosd`."""
    heed()
    from inferenceosd.cli import main as command  # late: half a second goes by with imports

    command()
