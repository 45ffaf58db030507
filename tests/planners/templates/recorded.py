"""Templates and what Go makes of them, recorded; tests/fixtures/go_templates.json says how."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planners.templates.conversation import Said

_RECORDED = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "go_templates.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One template with the prompts that Go makes of the conversations."""

    name: str
    source: str
    prompts: dict[str, str]
    infill: str | None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the tools that are offered with them."""

    said: tuple[Said, ...]
    tools: tuple[dict[str, Any], ...]

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages in OpenAI's shape."""
        for one in self.said:
            calls = [
                {"id": "call_1", "type": "function", "function": _with_text(call["function"])}
                for call in one.tool_calls
                if isinstance(call, dict)
            ]
            told: dict[str, Any] = {"role": one.role, "content": one.content}
            yield told | ({"tool_calls": calls} if calls else {})


def _with_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"])}


TEMPLATES = [
    Recorded(row["name"], row["template"], row["prompts"], row.get("infill"))
    for row in _RECORDED["templates"]
]
CONVERSATIONS = {
    name: Conversation(
        tuple(
            Said(one["role"], one["content"], tool_calls=tuple(one.get("tool_calls", ())))
            for one in row["said"]
        ),
        tuple(row["tools"]),
    )
    for name, row in _RECORDED["conversations"].items()
}
