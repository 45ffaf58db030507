"""Requests as OpenTelemetry spans, with the caller's trace as their parent. No prompt is in them.

The one module that knows OpenTelemetry, an extra; imported only where traces are wanted.
"""

import threading
from collections.abc import Callable, Iterator
from time import monotonic, time_ns
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from planners.view import Observed
from proxy.exchange import Exchange
from proxy.service import Service
from proxy.telemetry.metrics import CALLER_LEFT_STATUS

CLOSE_S = 1.0  # for the last spans to be sent, when the daemon stops

_PROPAGATOR = TraceContextTextMapPropagator()


class Phase(NamedTuple):
    """A part of a request's time."""

    name: str
    began_s: float
    """Monotonic."""
    ended_s: float


class Tracing:
    """Implements proxy.door.Traces."""

    def __init__(
        self, provider: TracerProvider, service: Service, *, route: Callable[[str], str]
    ) -> None:
        self._provider, self._service, self._route = provider, service, route
        self._tracer = provider.get_tracer("inferenceosd")

    def begun(self, exchange: Exchange) -> "RequestTrace":
        """A trace of a request that came just now; gives the exchange its `traceparent`."""
        names = ("traceparent", "tracestate")
        told = {name: exchange.header(name.encode()).decode("latin-1") for name in names}
        parent = _PROPAGATOR.extract(told, Context())
        name = f"{exchange.method} {self._route(exchange.path)}"
        span = self._tracer.start_span(name, parent, SpanKind.SERVER)
        own = span.get_span_context()
        flags = int(own.trace_flags)
        exchange.traceparent = b"00-%032x-%016x-%02x" % (own.trace_id, own.span_id, flags)
        exchange.extra_headers.append((b"traceresponse", exchange.traceparent))
        return RequestTrace(span, self._tracer, self._service, self._route(exchange.path))

    def close(self) -> None:
        """Send what is left, for CLOSE_S at most."""
        last = threading.Thread(target=self._provider.shutdown, name="otel", daemon=True)
        last.start()
        last.join(CLOSE_S)


class RequestTrace:
    """One request's span, and what it becomes at its end."""

    def __init__(self, span: Span, tracer: Tracer, service: Service, route: str) -> None:
        self._span, self._tracer, self._service, self._route = span, tracer, service, route
        self._epoch_ns = time_ns() - int(monotonic() * 1e9)

    def end(self, exchange: Exchange, error: str | None) -> None:
        """Ends it, with a child for each of its phases."""
        ended_s = monotonic()
        if self._span.is_recording():
            self._span.set_attributes(_attributes(exchange, self._route, error))
            if exchange.status >= 500:
                self._span.set_status(Status(StatusCode.ERROR))
            within = set_span_in_context(self._span, Context())
            for name, began_s, over_s in phases(exchange, self._instance(exchange), ended_s):
                child = self._tracer.start_span(name, within, start_time=self._ns(began_s))
                child.end(self._ns(over_s))
        self._span.end(self._ns(ended_s))

    def _instance(self, exchange: Exchange) -> Observed | None:
        if exchange.lease is None:
            return None
        own_id = exchange.lease.instance_id
        return next((i for i in self._service.running() if i.instance_id == own_id), None)

    def _ns(self, at_s: float) -> int:
        return self._epoch_ns + int(at_s * 1e9)


def phases(exchange: Exchange, instance: Observed | None, ended_s: float) -> Iterator[Phase]:
    """Where a request's time went: in line, while its model was loaded, reading, writing.

    The last two by the child's own account, counted back from the reply's end.
    """
    lease, usage = exchange.lease, exchange.usage
    if lease is None:
        return
    granted_s = lease.granted_at_s
    asked_s = granted_s - lease.load_s
    yield Phase("wait", asked_s, granted_s)
    if instance is not None and instance.ready_since_s is not None:
        ready_s = instance.ready_since_s
        if asked_s < ready_s <= granted_s:
            yield Phase("load", max(asked_s, ready_s - (instance.load_s or 0.0)), ready_s)
    if usage is None:
        return
    decode_s = max(granted_s, ended_s - usage.decode_s)
    yield Phase("prefill", max(granted_s, decode_s - usage.prompt_s), decode_s)
    yield Phase("decode", decode_s, ended_s)


def _attributes(exchange: Exchange, route: str, error: str | None) -> dict[str, str | int]:
    told: dict[str, str | int | None] = {
        "http.request.method": exchange.method,
        "http.route": route,
        "http.response.status_code": exchange.status or CALLER_LEFT_STATUS,
        "error.type": error,
        "gen_ai.request.model": exchange.model,
        "inferenceosd.request_id": exchange.request_id,
    }
    if (lease := exchange.lease) is not None:
        told |= {"inferenceosd.instance_id": lease.instance_id, "inferenceosd.slot": lease.slot}
    if (usage := exchange.usage) is not None:
        told["inferenceosd.prompt_tokens"] = usage.prompt_tokens
        told["inferenceosd.decode_tokens"] = usage.decode_tokens
    return {name: value for name, value in told.items() if value is not None}


def otlp_provider(*, version: str) -> TracerProvider:
    """Sends spans where the OTEL_* variables say, over HTTP, from a thread of its own."""
    own = Resource({"service.name": "inferenceosd", "service.version": version})
    resource = own.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
