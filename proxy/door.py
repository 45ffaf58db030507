"""What every route is handed: the fleet, connections to its children, the port's settings."""

from typing import Protocol

from msgspec import Struct, field

from proxy.admission.gate import OPEN_GATE, Gate
from proxy.child.upstream import UpstreamPools
from proxy.crashers import Crashers
from proxy.exchange import Exchange
from proxy.listed import Listed
from proxy.service import Service
from proxy.telemetry.metrics import Metrics
from supervisor.store.keeper import StoreKeeper


class DoorSettings(Struct, frozen=True):
    """The public port as the operator wants it. Defaults are config.py's business."""

    max_body_bytes: int
    origins: tuple[str, ...]
    """Origins allowed besides Ollama's own, one `*` each; "*" is all."""
    listen_is_loopback: bool
    """Only then is the Host header checked, as Ollama does."""
    ui: bool
    """Whether the children's own web chat is served."""
    version: str
    """What is told to Ollama's clients: plain numbers, at least 0.20."""
    serves_metrics: bool
    """Whether `/metrics` is a route of the public port."""
    gate: Gate = OPEN_GATE
    """Whose keys open what."""
    ollama_strict: bool = False
    """Whether deliberate differences from Ollama are off."""
    keep_alive_comments_s: float = 0.0
    """Between comments in a stream of events that has not begun; 0 is none."""


class Door(Struct, frozen=True):
    """All of them together."""

    service: Service
    pools: UpstreamPools
    settings: DoorSettings
    metrics: Metrics
    store: StoreKeeper
    """The models that callers may add and remove."""
    crashers: Crashers = field(default_factory=Crashers)
    listed: Listed = field(default_factory=Listed)


class Trace(Protocol):
    """One request that is traced."""

    def end(self, exchange: Exchange, error: str | None) -> None:
        """It has ended."""


class Traces(Protocol):
    """Requests as spans: proxy.telemetry.tracing, which is imported only where they are wanted."""

    def begun(self, exchange: Exchange) -> Trace:
        """A trace of a request that came just now; gives the exchange its `traceparent`."""
