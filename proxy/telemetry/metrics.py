"""What Prometheus scrapes: counts of requests kept here, the fleet's own figures read as they are.

A request costs a few additions to plain numbers; what Prometheus has for them is made at a scrape.
Every name is in docs/metrics.md. Labels are bounded: models on offer, routes of the table.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from planners.lessons.histogram import Histogram
from planners.model import ModelId
from planners.view import Observed
from proxy.errors import UnknownModel
from proxy.exchange import Exchange
from proxy.service import Service
from supervisor.records.event_counts import EventCounts

CALLER_LEFT_STATUS = 499  # as nginx and Ollama log it; nobody receives it
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 10_000  # of one counter: a guard, what is offered stays far below
MANY = "(others)"
UNKNOWN = "unknown"

WAIT_BOUNDS_S = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class ModelTally:
    """What the requests of one model took."""

    __slots__ = ("decode_s", "decode_tokens", "first_s", "prompt_s", "prompt_tokens", "wait_s")

    def __init__(self) -> None:
        self.wait_s = Histogram(WAIT_BOUNDS_S)
        self.first_s = Histogram(FIRST_BOUNDS_S)
        self.prompt_tokens = self.decode_tokens = 0
        self.prompt_s = self.decode_s = 0.0


class Metrics:
    """All of the daemon's metrics; they outlive a door that is configured anew."""

    def __init__(
        self, service: Service, events: EventCounts, *, version: str, routes: Iterable[str]
    ) -> None:
        self.service, self.events, self.version = service, events, version
        self.requests: dict[tuple[str, str, int], int] = {}
        """By route, model and status."""
        self.errors: Counter[str] = Counter()
        self.models: dict[str, ModelTally] = {}
        self._routes: dict[str, str] = {route: route for route in routes}

    def served(self, exchange: Exchange, error: str | None) -> None:
        """Count a request that has ended."""
        model, path = exchange.model, exchange.path
        if model is None:
            model = UNKNOWN if error == UnknownModel.code else ""
        key = (
            self._routes.get(path) or self.route(path),
            model,
            exchange.status or CALLER_LEFT_STATUS,
        )
        before = self.requests.get(key)
        if before is None:
            before, key = self._first(key)
        self.requests[key] = before + 1
        if error is not None:
            known = error in self.errors or len(self.errors) < MOST_SERIES
            self.errors[error if known else MANY] += 1
        if exchange.lease is not None:
            self._granted(exchange, exchange.lease.model_id, exchange.lease.load_s)

    def _granted(self, exchange: Exchange, model_id: ModelId, waited_s: float) -> None:
        tally = self.models.get(model_id)
        if tally is None:
            tally = self.models[model_id] = ModelTally()
        tally.wait_s.add(waited_s)
        if exchange.framing is not None and exchange.first_byte_s is not None:
            tally.first_s.add(exchange.first_byte_s)
        if (usage := exchange.usage) is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.decode_tokens += usage.decode_tokens
            tally.prompt_s += usage.prompt_s
            tally.decode_s += usage.decode_s

    def _first(self, key: tuple[str, str, int]) -> tuple[int, tuple[str, str, int]]:
        """A key's count and the key under which it is counted, when it is new."""
        if len(self.requests) < MOST_SERIES:
            return 0, key
        many = (MANY, MANY, key[2])
        return self.requests.get(many, 0), many

    def route(self, path: str) -> str:
        """The pattern of the table that a path is answered by; MANY where there is none."""
        if (bare := path.rstrip("/")) in self._routes:
            return bare
        within = (route for route in _PATTERNS if path.startswith(route[: route.index("{")]))
        return next(within, MANY)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        # Late: who is never scraped does not pay for it.
        from proxy.telemetry.metrics_text import text_of

        return text_of(self)


_PATTERNS = (
    "/v1/models/{id}",
    "/v1/responses/{id}",
    "/upstream/{model}",
    "/slots/{id}",
    "/api/blobs/{digest}",
)
"""Routes that end in a name."""


def by_model(running: Iterable[Observed]) -> Mapping[str, list[Observed]]:
    """Instances of each model: one that ends may have its successor beside it."""
    found: dict[str, list[Observed]] = {}
    for seen in running:
        found.setdefault(seen.model_id, []).append(seen)
    return found
