"""Engines that hold whoever plans with them until a test lets go: what happens meanwhile is a race
that always takes place. And engines that no plan survives."""

import threading
from collections.abc import Iterator

from planners.backends import Engine

HELD_S = 20.0


class HeldEngines(tuple[Engine, ...]):
    """The same engines; the planner's thread waits where it asks whether there are any."""

    reached: threading.Event
    opened: threading.Event
    passes: int

    def __new__(cls, engines: tuple[Engine, ...]) -> "HeldEngines":
        held = super().__new__(cls, engines)
        held.reached, held.opened, held.passes = threading.Event(), threading.Event(), 0
        return held

    def __len__(self) -> int:
        if threading.current_thread().name.startswith("planner"):
            self.reached.set()
            assert self.opened.wait(HELD_S), "nobody opened the gate"
            self.passes += 1
        return super().__len__()


class OddEngines(tuple[Engine, ...]):
    """The same engines; while they are odd, a plan that puts them in order trips over them."""

    are_odd: bool

    def __new__(cls, engines: tuple[Engine, ...]) -> "OddEngines":
        odd = super().__new__(cls, engines)
        odd.are_odd = True
        return odd

    def __iter__(self) -> Iterator[Engine]:
        if self.are_odd and threading.current_thread().name.startswith("planner"):
            raise ArithmeticError("odd engines")
        return super().__iter__()
