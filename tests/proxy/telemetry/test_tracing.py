"""Requests as spans: kept in the SDK's memory, and received by OTLP over HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from planners.lessons.usage import Usage
from planners.plan import InstanceId
from proxy.edge.cycle import CYCLE
from proxy.edge.known import HEAD, Head
from proxy.exchange import Exchange
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.tracing import Phase, Tracing, otlp_provider, phases
from supervisor.leases.lease import Lease
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving
from tests.fakes.views import model, seen

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "my secret"}],
    "max_tokens": 3,
    "options": {"num_predict": 3},
}
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def into(kept: InMemorySpanExporter, fleet: FleetOfOne) -> Callable[[Metrics], Tracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return lambda metrics: Tracing(provider, fleet, route=metrics.route)


def hexes(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
async def test_a_request_is_a_span_with_its_phases_under_its_callers(
    tmp_path: Path, kept: InMemorySpanExporter, path: str
) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "x-request-id": "abc-1"}
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet, traces=into(kept, fleet)) as served,
    ):
        reply = await served.client.post(path, json=CHAT, headers=headers)

    *parts, whole = kept.get_finished_spans()
    assert (whole.name, [part.name for part in parts]) == (
        f"POST {path}",
        ["wait", "prefill", "decode"],
    )
    assert reply.headers["traceresponse"] == "00-{}-{}-01".format(*hexes(whole))
    assert hexes(whole)[0] == TRACE_ID
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT_ID
    assert all(part.parent == whole.get_span_context() for part in parts)
    assert whole.attributes is not None
    assert whole.attributes["inferenceosd.request_id"] == "abc-1"
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["inferenceosd.decode_tokens"] == 3
    assert "secret" not in "".join(span.to_json() for span in (whole, *parts))


async def test_what_is_refused_is_a_span_with_its_error(
    tmp_path: Path, kept: InMemorySpanExporter
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet, traces=into(kept, fleet)) as served:
        await served.client.post("/v1/chat/completions", json=CHAT | {"model": "nobody"})
        await served.client.get("/v1/models/a/secret/name")

    refused, unknown = kept.get_finished_spans()
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "model_not_found"
    assert unknown.name == "GET /v1/models/{id}"
    assert refused.parent is None


def served_exchange(*, waited_s: float, usage: Usage | None) -> Exchange:
    scope: dict[str, Any] = {"method": "POST", "path": "/api/chat", "headers": []}
    scope |= {CYCLE: None, HEAD: Head([])}
    exchange = Exchange(scope, request_id="r1")
    exchange.lease = Lease(
        instance_id=InstanceId("i1"),
        model_id=model("tiny").model_id,
        slot=0,
        socket_path="",
        context=4096,
        embedding=False,
        load_s=waited_s,
        granted_at_s=100.0,
    )
    exchange.usage = usage
    return exchange


def test_a_wait_in_which_the_model_was_loaded_has_the_load_in_it() -> None:
    exchange = served_exchange(waited_s=10.0, usage=Usage(5, 1.0, 5, 2.0))
    instance = replace(seen(model("tiny")), ready_since_s=99.0, load_s=6.0)

    assert list(phases(exchange, instance, 104.0)) == [
        Phase("wait", 90.0, 100.0),
        Phase("load", 93.0, 99.0),
        Phase("prefill", 101.0, 102.0),
        Phase("decode", 102.0, 104.0),
    ]


def test_a_load_before_the_request_is_not_its_own() -> None:
    exchange = served_exchange(waited_s=1.0, usage=None)
    instance = replace(seen(model("tiny")), ready_since_s=50.0, load_s=6.0)

    assert list(phases(exchange, instance, 104.0)) == [Phase("wait", 99.0, 100.0)]


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP: its endpoint, and what it got."""
    received: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


async def test_spans_are_sent_where_the_standard_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    with collector() as (endpoint, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=test")
        made: list[Tracing] = []

        def traces(metrics: Metrics) -> Tracing:
            made.append(Tracing(otlp_provider(version="1.2.3"), fleet, route=metrics.route))
            return made[0]

        async with serving(fleet, traces=traces) as served:
            await served.client.get("/api/version")
        made[0].close()

    (request,) = received
    (spans,) = request.resource_spans
    resource = {pair.key: pair.value.string_value for pair in spans.resource.attributes}
    assert resource["service.name"] == "inferenceosd"
    assert resource["deployment"] == "test"
    assert [span.name for span in spans.scope_spans[0].spans] == ["GET /api/version"]
