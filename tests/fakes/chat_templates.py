"""Copies of a model's file with another chat template, or more metadata, and the same weights."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

_KEY = b"tokenizer.chat_template"
_PADDING = b"general.description"
_U32, _TEXT = 4, 8
_ALIGNMENT = 32
_HEAD_BYTES = 16 << 20  # the quickstart model's header is 1.7 MB

_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with its name and arguments' }}
{{- ' within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""

_MESSAGES = """\
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
REASONING
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls or [] %}
{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- (tool_call.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
"""

_REASONING = """\
{%- if message.reasoning_content %}
{{- '\\n<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}
{%- endif %}"""

HERMES = (
    _TOOLS
    + _MESSAGES.replace("REASONING\n", "")
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Tools in <tool_call>, as in Hermes 2 Pro and Qwen 2.5."""

QWEN = (
    _TOOLS
    + _MESSAGES.replace("REASONING", _REASONING)
    + """\
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}"""
)
"""The same, and a thought in <think> that the prompt opens, as in Qwen 3's thinking models."""

_CITY = {"type": "string", "maxLength": 12}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": _CITY}, "required": ["city"]},
}
"""A function, in OpenAI's shape."""


def _called(city: str) -> list[dict[str, Any]]:
    call = {"name": "weather", "arguments": json.dumps({"city": city})}
    calls = [{"id": "c1", "type": "function", "function": call}]
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]


WEATHER_CHAT: list[dict[str, Any]] = [
    *_called("Paris"),
    *_called("Rome"),
    {"role": "user", "content": "Weather in Oslo?"},
]
"""A conversation that a small model under HERMES goes on with, greedily, by calling `weather`."""


def with_template(model: Path, template: str, to: Path) -> Path:
    """`to`, a copy of the GGUF file `model` with `template` as its chat template."""
    with model.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        start = head.index(struct.pack("<Q", len(_KEY)) + _KEY + struct.pack("<I", _TEXT))
        at = start + 8 + len(_KEY) + 4
        (n_bytes,) = struct.unpack_from("<Q", head, at)
        text = _of_like_length(template.encode(), n_bytes)
        with to.open("wb") as copy:
            copy.write(head[:at] + struct.pack("<Q", len(text)) + text)
            file.seek(at + 8 + n_bytes)
            shutil.copyfileobj(file, copy, 1 << 20)
    return to


def with_numbers(model: Path, numbers: dict[str, int], to: Path) -> Path:
    """`to`, a copy of the GGUF file `model` whose metadata has `numbers` too."""
    pairs = b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", _U32, value)
        for key, value in numbers.items()
    )
    empty = struct.pack("<Q", len(_PADDING)) + _PADDING + struct.pack("<IQ", _TEXT, 0)
    blanks = -len(pairs + empty) % _ALIGNMENT
    padding = empty[:-8] + struct.pack("<Q", blanks) + b" " * blanks
    with model.open("rb") as file, to.open("wb") as copy:
        copy.write(file.read(16))
        (n_pairs,) = struct.unpack("<Q", file.read(8))
        copy.write(struct.pack("<Q", n_pairs + len(numbers) + 1) + pairs + padding)
        shutil.copyfileobj(file, copy, 1 << 20)
    return to


def _of_like_length(text: bytes, n_bytes: int) -> bytes:
    """`text` and a comment, so long that what follows stays aligned as it was behind `n_bytes`."""
    blanks = (n_bytes - len(text) - len(b"{##}")) % _ALIGNMENT
    return text + b"{#" + b" " * blanks + b"#}"
