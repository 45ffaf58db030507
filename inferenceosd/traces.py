"""Whether requests are traced: as OpenTelemetry's variables say, where its extra is there."""

from collections.abc import Mapping
from contextlib import ExitStack

import structlog

from inferenceosd import __version__
from proxy.door import Traces
from proxy.service import Service
from proxy.telemetry.metrics import Metrics

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = structlog.get_logger(__name__)


def wants_traces(environ: Mapping[str, str]) -> bool:
    """Whether the OTEL_* variables name a place to send traces to."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporters := environ.get("OTEL_TRACES_EXPORTER", "").strip():
        return "otlp" in [name.strip() for name in exporters.split(",")]
    return any(environ.get(name, "").strip() for name in _ENDPOINTS)


def open_traces(
    environ: Mapping[str, str], service: Service, metrics: Metrics, held: ExitStack
) -> Traces | None:
    """Traces, closed with `held`; None where none are wanted, or the extra is missing."""
    if not wants_traces(environ):
        return None
    try:
        # Only here: without traces nobody pays for them.
        from proxy.telemetry.tracing import Tracing, otlp_provider
    except ImportError as exc:
        log.warning("tracing.missing", reason=f"install inferenceosd[otel]: {exc}")
        return None
    tracing = Tracing(otlp_provider(version=__version__), service, route=metrics.route)
    held.callback(tracing.close)
    return tracing
