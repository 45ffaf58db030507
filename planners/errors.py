"""The root of everything that planners raise: a sentence for the operator, facts as fields."""

from collections.abc import Iterator
from contextlib import contextmanager

from planners.model import ModelId


class PlanError(Exception):
    """A planner was given something it cannot answer for."""


class PlanBug(Exception):
    """Planning one model raised what no plan may raise; not a PlanError: nobody asked wrongly."""

    def __init__(self, model_id: ModelId, why: Exception) -> None:
        self.model_id = model_id
        told = str(why) or type(why).__name__
        super().__init__(f"planning it failed: {told}; this is a bug")


@contextmanager
def blamed_on(model_id: ModelId) -> Iterator[None]:
    """Raise PlanBug for whatever else than PlanError the block raises."""
    try:
        yield
    except PlanError:
        raise
    except Exception as exc:
        raise PlanBug(model_id, exc) from exc
