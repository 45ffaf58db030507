"""Events of the journal as counts since the daemon's start, for its metrics.

Counted where they are recorded, so that the two never differ.
"""

from collections import Counter
from collections.abc import Mapping

from planners.lessons.histogram import Histogram
from planners.model import ModelId

LOAD_BOUNDS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)


class EventCounts:
    """What happened to models in memory, and how often."""

    def __init__(self) -> None:
        self.evictions: Counter[tuple[ModelId, str]] = Counter()
        """By model and planners.instances.actions.Departure."""
        self.restarts: Counter[tuple[ModelId, str]] = Counter()
        """By model and planners.instances.exits.ExitKind."""
        self.resumptions: Counter[tuple[ModelId, str]] = Counter()
        """By model and the way in which a reply went on after its child was lost."""
        self.migrations: Counter[tuple[ModelId, str]] = Counter()
        """By model and how it went: an order of planners.moving.migration, or `failed`."""
        self.load_s: dict[ModelId, Histogram] = {}

    def take(self, kind: str, model_id: ModelId | None, facts: Mapping[str, object]) -> None:
        """Count an event, where it is one that is counted."""
        if model_id is None:
            return
        why, load_s, way = facts.get("why"), facts.get("load_s"), facts.get("way")
        if kind == "instance.loaded" and isinstance(load_s, float):
            self.load_s.setdefault(model_id, Histogram(LOAD_BOUNDS_S)).add(load_s)
        elif kind == "instance.resumed" and isinstance(why, str):
            self.restarts[model_id, why] += 1
        elif kind == "stream.resumed" and isinstance(way, str):
            self.resumptions[model_id, way] += 1
        elif kind == "migration.done":
            self.migrations[model_id, str(facts.get("order"))] += 1
        elif kind == "migration.failed":
            self.migrations[model_id, "failed"] += 1
        elif kind in ("instance.drained", "instance.stopped") and isinstance(why, str):
            # The first of the two has the reason; a drained one is stopped without another.
            self.evictions[model_id, why] += 1
