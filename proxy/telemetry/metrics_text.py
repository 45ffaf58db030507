"""The metrics in Prometheus' text format: the one module that knows prometheus-client."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from planners.lessons.histogram import Histogram
from planners.view import InstanceState, LineSeen, Observed
from proxy.telemetry.metrics import Metrics, ModelTally, by_model


def text_of(metrics: Metrics) -> bytes:
    """All metrics as they are now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(metrics))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering collects once more

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield InfoMetricFamily("inferenceosd", "The daemon.", {"version": metrics.version})
        yield from _requests(metrics)
        yield from _tallies(metrics.models)
        yield from _lines(metrics)
        yield from _events(metrics)
        yield from _instances(metrics)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "inferenceosd_requests", "Requests answered.", labels=("route", "model", "status")
    )
    for (route, model, status), count in metrics.requests.items():
        requests.add_metric((route, model, str(status)), count)
    yield requests
    errors = CounterMetricFamily(
        "inferenceosd_errors", "Requests that ended with an error.", labels=("code",)
    )
    for code, count in metrics.errors.items():
        errors.add_metric((code,), count)
    yield errors


def _tallies(models: dict[str, ModelTally]) -> Iterator[Metric]:
    waits = _histogram("inferenceosd_wait_seconds", "From asking to a slot, a load included.")
    firsts = _histogram(
        "inferenceosd_time_to_first_token_seconds",
        "From a request to the first byte of its streamed reply.",
    )
    for model, tally in models.items():
        _fill(waits, model, tally.wait_s)
        _fill(firsts, model, tally.first_s)
    yield waits
    yield firsts
    counted: tuple[tuple[str, str, Callable[[ModelTally], float]], ...] = (
        ("prompt_tokens", "Tokens of prompts that were read.", lambda t: t.prompt_tokens),
        ("prompt_seconds", "Seconds that reading prompts took.", lambda t: t.prompt_s),
        ("decode_tokens", "Tokens that were written.", lambda t: t.decode_tokens),
        ("decode_seconds", "Seconds that writing tokens took.", lambda t: t.decode_s),
    )
    for name, help_text, value in counted:
        family = CounterMetricFamily(f"inferenceosd_{name}", help_text, labels=("model",))
        for model, tally in models.items():
            family.add_metric((model,), value(tally))
        yield family


def _lines(metrics: Metrics) -> Iterator[Metric]:
    length = _gauge("inferenceosd_queue_length", "Requests that wait for a slot.")
    oldest = _gauge("inferenceosd_queue_oldest_seconds", "How long the first of them has waited.")
    lines: dict[str, LineSeen] = {line.model_id: line for line in metrics.service.lines()}
    for model in dict.fromkeys([*metrics.models, *lines]):
        line = lines.get(model)
        length.add_metric((model,), line.waiting if line else 0)
        oldest.add_metric((model,), line.oldest_wait_s if line else 0.0)
    yield length
    yield oldest


def _events(metrics: Metrics) -> Iterator[Metric]:
    loads = _histogram("inferenceosd_load_seconds", "From a process's start to its first slot.")
    for model, load_s in metrics.events.load_s.items():
        _fill(loads, model, load_s)
    yield loads
    for name, help_text, counts in (
        ("evictions", "Instances that were told to end.", metrics.events.evictions),
        ("restarts", "Processes launched again after an end unasked.", metrics.events.restarts),
        ("resumptions", "Replies that outlived their process.", metrics.events.resumptions),
        ("migrations", "Models that moved, or were to.", metrics.events.migrations),
    ):
        family = CounterMetricFamily(f"inferenceosd_{name}", help_text, labels=("model", "reason"))
        for (model, reason), count in counts.items():
            family.add_metric((model, reason), count)
        yield family


def _instances(metrics: Metrics) -> Iterator[Metric]:
    found = by_model(metrics.service.running())
    told: tuple[tuple[str, str, Callable[[list[Observed]], float | None]], ...] = (
        ("child_up", "1 while the model's process serves, else 0.", _is_up),
        ("requests_running", "Requests that have a slot.", _running),
        ("prompt_tokens_per_second", "Of late, per request.", _prompt_rate),
        ("decode_tokens_per_second", "Of late, per request.", _decode_rate),
    )
    for name, help_text, value in told:
        family = _gauge(f"inferenceosd_{name}", help_text)
        for model, instances in found.items():
            if (now := value(instances)) is not None:
                family.add_metric((model,), now)
        yield family
    yield from _memory(found.items())


def _is_up(instances: list[Observed]) -> float:
    return float(any(one.state is InstanceState.READY for one in instances))


def _running(instances: list[Observed]) -> float:
    return sum(one.running for one in instances)


def _prompt_rate(instances: list[Observed]) -> float | None:
    return instances[-1].prompt_tokens_per_s


def _decode_rate(instances: list[Observed]) -> float | None:
    return instances[-1].decode_tokens_per_s


def _memory(found: Iterable[tuple[str, list[Observed]]]) -> Iterator[Metric]:
    predicted = _gauge(
        "inferenceosd_memory_predicted_bytes", "Of its buffers, as planned.", "device"
    )
    measured = _gauge(
        "inferenceosd_memory_measured_bytes", "Of the same, as its engine told.", "device"
    )
    for model, instances in found:
        alive = [one for one in instances if one.pid is not None]
        for family, parts in (
            (predicted, [part for one in alive for part in one.plan.predicted]),
            (measured, [part for one in alive for part in one.measured]),
        ):
            on_device: dict[str, int] = {}
            for part in parts:
                on_device[part.device_id] = on_device.get(part.device_id, 0) + part.buffer_bytes
            for device, size_bytes in on_device.items():
                family.add_metric((model, device), size_bytes)
    yield predicted
    yield measured


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("model", *labels))


def _histogram(name: str, help_text: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, help_text, labels=("model",))


def _fill(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    buckets = [
        ("+Inf" if bound is None else repr(bound), below) for bound, below in histogram.cumulative()
    ]
    family.add_metric((model,), buckets, sum_value=histogram.total)
