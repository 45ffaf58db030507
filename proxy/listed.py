"""Replies about all models, rendered once for as long as these are the same. Pure."""

from collections.abc import Callable, Sequence
from operator import is_

from planners.model import ServedModel

Render = Callable[[Sequence[ServedModel]], bytes]


class Listed:
    """The last reply of each kind, and of which models it tells.

    A model that changed is another object, so that no generation need be counted.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Render, tuple[Sequence[ServedModel], bytes]] = {}

    def told(self, render: Render, models: Sequence[ServedModel]) -> bytes:
        """What `render` makes of the models, in the order in which they are offered."""
        last = self._last.get(render)
        if last is not None and len(last[0]) == len(models) and all(map(is_, last[0], models)):
            return last[1]
        body = render(models)
        self._last[render] = (models, body)
        return body
