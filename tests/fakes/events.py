"""A stream of named events, as its reader has it."""

import json
from typing import Any


def named_events(text: str) -> list[dict[str, Any]]:
    """The payloads, each of which names its event as the line before it does."""
    *events, end = text.split("\n\n")
    assert end == "", "the last event is cut off"
    payloads = []
    for event in events:
        name, data = event.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        payloads.append(payload)
    return payloads
