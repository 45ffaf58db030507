"""What Prometheus would read, by its own parser, after real requests."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from planners.hardware import DeviceId
from planners.model import ModelId
from planners.plan import DeviceBytes
from planners.view import LineSeen, Observed
from proxy.telemetry.metrics import MANY, UNKNOWN
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, Served, metrics_of, serving
from tests.fakes.views import model, seen

DOCS = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}

TINY = ModelId("tiny")

Samples = Mapping[tuple[str, tuple[str, ...]], float]


def samples(text: str) -> Samples:
    """Each sample's value by its name and its labels' values, in the order of their names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(served: Served) -> Samples:
    reply = await served.client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(reply.text)


async def test_requests_are_counted_by_route_model_and_status(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as served:
        await served.client.post("/v1/chat/completions", json=ASKED)
        await served.client.post("/v1/chat/completions/", json=ASKED | {"stream": True})
        await served.client.post("/api/chat", json=ASKED | {"model": "nobody"})
        await served.client.get("/v1/models/a/b:c")
        await served.client.get("/no/such/path")

        told = await scraped(served)

    name = "inferenceosd_requests_total"
    assert told[name, ("tiny", "/v1/chat/completions", "200")] == 2
    assert told[name, (UNKNOWN, "/api/chat", "404")] == 1
    assert told[name, (UNKNOWN, "/v1/models/{id}", "404")] == 1
    assert told[name, ("", MANY, "404")] == 1
    assert told["inferenceosd_errors_total", ("model_not_found",)] == 2


async def test_tokens_waits_and_first_tokens_are_counted_by_model(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as served:
        await served.client.post("/v1/chat/completions", json=ASKED)
        await served.client.post("/v1/chat/completions", json=ASKED | {"stream": True})

        told = await scraped(served)

    assert told["inferenceosd_decode_tokens_total", ("tiny",)] == 6
    assert told["inferenceosd_prompt_tokens_total", ("tiny",)] > 0
    assert told["inferenceosd_wait_seconds_count", ("tiny",)] == 2
    assert told["inferenceosd_time_to_first_token_seconds_count", ("tiny",)] == 1
    assert told["inferenceosd_child_up", ("tiny",)] == 1
    assert told["inferenceosd_queue_length", ("tiny",)] == 0
    assert told["inferenceosd_info", ("1.2.3",)] == 1


async def test_a_port_on_which_they_are_not_wanted_has_no_metrics(tmp_path: Path) -> None:
    settings = replace(SETTINGS, serves_metrics=False)
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet, settings=settings) as served:
        assert (await served.client.get("/metrics")).status_code == 404


async def test_whatever_callers_ask_for_the_series_are_bounded(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as served:
        for n in range(20):
            await served.client.get(f"/{n}")
            await served.client.post("/v1/chat/completions", json=ASKED | {"model": f"m{n}"})

        told = await scraped(served)

    requests = {key: count for key, count in told.items() if key[0].endswith("requests_total")}
    assert sorted(requests.values()) == [20, 20]


class InMemory(FleetOfOne):
    """Has an instance of everything that is told of one, and a line."""

    def running(self) -> Sequence[Observed]:
        parts = (DeviceBytes(DeviceId("gpu"), 1, 2, 3, 4),)
        one = seen(model("tiny"), measured=parts)
        return (
            replace(
                one,
                pid=4711,
                plan=replace(one.plan, predicted=parts),
                decode_tokens_per_s=20.0,
                prompt_tokens_per_s=200.0,
            ),
        )

    def lines(self) -> Sequence[LineSeen]:
        return (LineSeen(TINY, waiting=3, oldest_wait_s=1.5, callers=()),)


async def test_every_metric_is_on_the_page_with_its_type_and_labels_and_no_other(
    tmp_path: Path,
) -> None:
    rows = re.findall(r"^\| `(inferenceosd_\w+)` \| (\w+) \| ([\w, ]+) \|", DOCS, re.MULTILINE)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as served:
        await served.client.post("/v1/chat/completions", json=ASKED | {"stream": True})
        await served.client.get("/v1/models/nobody")
        metrics = served.metrics
    metrics.service = InMemory(served_model(), tmp_path)
    metrics.events.take("instance.loaded", TINY, {"load_s": 1.5})
    metrics.events.take("instance.resumed", TINY, {"why": "crash"})
    metrics.events.take("instance.drained", TINY, {"why": "room"})
    metrics.events.take("stream.resumed", TINY, {"way": "replay"})
    metrics.events.take("migration.done", TINY, {"order": "make-before-break"})

    families = list(text_string_to_metric_families(metrics.text().decode()))

    told = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            sorted({label for s in family.samples for label in s.labels} - {"le"}),
        )
        for family in families
    }
    assert told == {name: (kind, sorted(labels.split(", "))) for name, kind, labels in rows}
    assert all(family.documentation for family in families)


async def test_instances_are_told_by_model_and_device(tmp_path: Path) -> None:
    metrics = metrics_of(InMemory(served_model(), tmp_path))

    told = samples(metrics.text().decode())

    assert told["inferenceosd_memory_predicted_bytes", ("gpu", "tiny")] == 6
    assert told["inferenceosd_memory_measured_bytes", ("gpu", "tiny")] == 6
    assert told["inferenceosd_queue_length", ("tiny",)] == 3
    assert told["inferenceosd_queue_oldest_seconds", ("tiny",)] == 1.5
    assert told["inferenceosd_decode_tokens_per_second", ("tiny",)] == 20.0
