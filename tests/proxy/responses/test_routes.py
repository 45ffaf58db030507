from pathlib import Path
from typing import Any

import pytest

from tests.fakes.events import named_events
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving

ASKED: dict[str, Any] = {"model": "tiny", "input": "one two three"}


async def test_a_stream_has_its_events_in_openais_order_and_numbered(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path, faults={"tokens": 2}) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/responses", json={**ASKED, "stream": True})

    events = named_events(reply.text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert {event["response"]["id"] for event in events if "response" in event} == {
        events[0]["response"]["id"]
    }
    assert [event["delta"] for event in events if "delta" in event] == ["one", " two"]
    assert events[6]["text"] == "one two"


async def test_the_last_event_holds_the_response_that_an_unstreamed_request_gets(
    tmp_path: Path,
) -> None:
    async with fleet_of_one(tmp_path, faults={"tokens": 4}) as fleet, serving(fleet) as at:
        whole = (await at.client.post("/v1/responses", json=ASKED)).json()
        stream = await at.client.post("/v1/responses", json={**ASKED, "stream": True})

    last = named_events(stream.text)[-1]["response"]
    assert same(whole) == same(last)
    assert whole["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }


def same(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from run to run."""
    (item,) = response["output"]
    ids = {"id": "", "created_at": 0, "completed_at": 0}
    return {**response, **ids, "output": [{**item, "id": ""}]}


async def test_a_response_repeats_its_request(tmp_path: Path) -> None:
    told = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    }
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = (await at.client.post("/v1/responses", json={**ASKED, **told})).json()

    assert told.items() <= reply.items()
    assert reply["store"] is False


async def test_a_response_cut_by_its_limit_is_incomplete(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        asked = {**ASKED, "max_output_tokens": 2}
        whole = (await at.client.post("/v1/responses", json=asked)).json()
        stream = await at.client.post("/v1/responses", json={**asked, "stream": True})

    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert named_events(stream.text)[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["resp_1", "resp_1/cancel", "resp_1/input_items"])
async def test_no_response_is_found_by_its_id(tmp_path: Path, method: str, path: str) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = await at.client.request(method, f"/v1/responses/{path}")

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "response_not_found")
    assert "'resp_1' not found: responses are not stored here" in error["message"]
