"""Anthropic's requests, read once, and the chat that the child is asked instead.

The child has a route of this dialect, which drops what it does not know: the slot, the progress,
a tool's name in tool_choice, thinking that is off, output_config (llama.cpp server-chat.cpp).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from proxy.chat.media import data_url
from proxy.chat.turn import STREAMED, read_whole
from proxy.child.chunks import ABSENT
from proxy.errors import BadRequest

MAX_STOPS, MAX_STOP = 64, 1024
"""Stop sequences, and the length of one: each is looked for in every piece of a reply."""

_OBJECT = msgspec.Raw(b"{}")
_ANY_OBJECT = msgspec.Raw(b'{"type":"object"}')


class _Source(msgspec.Struct):
    type: str = ""
    media_type: str = "image/jpeg"
    data: str = ""
    url: str = ""


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    source: _Source | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = _OBJECT
    tool_use_id: str = ""
    content: "str | tuple[_Block, ...] | None" = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[_Block, ...]


class _Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str = ""
    input_schema: msgspec.Raw = _ANY_OBJECT


class _ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class _Thinking(msgspec.Struct):
    type: str
    """"disabled", or one of the ways to think."""
    budget_tokens: int | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class MessagesRequest(msgspec.Struct):
    """What is read of a request; of the rest, only the syntax."""

    model: str | None = None
    messages: tuple[_Message, ...] = ()
    max_tokens: int | None = None
    system: str | tuple[_Block, ...] | None = None
    stream: bool | None = None
    stop_sequences: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: tuple[_Tool, ...] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    keep_alive: float | str | None = None
    """Ours: as in Ollama's dialect."""
    num_ctx: int | None = None
    """Ours too."""


_REQUEST = msgspec.json.Decoder(MessagesRequest)
_BILLING = re.compile(r"(x-anthropic-billing-header:.*?cch=).{5};", re.DOTALL)


def read_request(body: bytes, *, counts: bool = False) -> MessagesRequest:
    """The request in `body`; one that only `counts` has no max_tokens. Raises BadRequest."""
    asked = read_whole(body, _REQUEST)
    if not asked.messages:
        raise BadRequest("messages: at least one message is required", param="messages")
    if _is_too_much(asked.stop_sequences or ()):
        reason = f"stop_sequences: at most {MAX_STOPS}, each of {MAX_STOP} characters at most"
        raise BadRequest(reason, param="stop_sequences")
    if counts:
        return asked
    if asked.max_tokens is None:
        raise BadRequest("max_tokens: Field required", param="max_tokens")
    if asked.max_tokens < 1:
        reason = "max_tokens: must be greater than or equal to 1"
        raise BadRequest(reason, param="max_tokens")
    return asked


def _is_too_much(stops: tuple[str, ...]) -> bool:
    return len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP for stop in stops)


def chat_body(asked: MessagesRequest) -> dict[str, object]:
    """The body of llama-server's /v1/chat/completions.

    Raises BadRequest for what is not offered.
    """
    messages = [*_system(asked.system), *_messages(asked.messages)]
    body: dict[str, object] = {"messages": messages, **STREAMED}
    told = {
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
    }
    body |= {key: value for key, value in told.items() if value is not None}
    body |= _tools(asked.tools or (), asked.tool_choice)
    body |= _thinking(asked.thinking)
    body |= _output(asked.output_config)
    if asked.stop_sequences:
        body["timings_per_token"] = True  # what was decoded when the sequence was met
    if messages[-1]["role"] == "assistant" and messages[-1]["content"]:
        # A partial answer is continued; llama-server would repeat it in its reply.
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _system(told: str | tuple[_Block, ...] | None) -> list[dict[str, object]]:
    blocks = (told,) if isinstance(told, str) else [block.text for block in told or ()]
    # Claude Code's stamp differs from request to request, and no prompt would be found in a cache.
    text = "".join(_BILLING.sub(r"\1fffff;", block, count=1) for block in blocks)
    return [{"role": "system", "content": text}] if text else []


def _messages(told: Iterable[_Message]) -> Iterator[dict[str, object]]:
    for number, message in enumerate(told):
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant(message.content, f"messages.{number}.content")
        else:
            yield from _user(message.role, message.content, f"messages.{number}.content")


def _assistant(blocks: tuple[_Block, ...], where: str) -> dict[str, object]:
    calls = []
    for number, block in enumerate(blocks):
        if block.type == "tool_use":
            function = {"name": block.name, "arguments": bytes(block.input).decode()}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type not in ("text", "thinking", "redacted_thinking"):
            raise _unsupported(block.type, f"{where}.{number}")
    text = "".join(block.text for block in blocks if block.type == "text")
    message: dict[str, object] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    if thought := "".join(block.thinking for block in blocks):
        message["reasoning_content"] = thought
    return message


def _user(role: str, blocks: tuple[_Block, ...], where: str) -> Iterator[dict[str, object]]:
    """Results of tools, each a message of its own right after the calls; then what was said."""
    said = []
    for number, block in enumerate(blocks):
        if block.type == "tool_result":
            content = _result(block.content, f"{where}.{number}.content")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        else:
            said.append(_part(block, f"{where}.{number}"))
    if said:
        yield {"role": role, "content": _joined(said)}


def _result(content: str | tuple[_Block, ...] | None, where: str) -> object:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(block, f"{where}.{number}") for number, block in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return parts


def _joined(parts: list[dict[str, object]]) -> object:
    is_one_text = len(parts) == 1 and parts[0]["type"] == "text"
    return parts[0]["text"] if is_one_text else parts


def _part(block: _Block, where: str) -> dict[str, object]:
    """A text or an image, in OpenAI's shape."""
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type != "image" or block.source is None:
        raise _unsupported(block.type, where)
    source = block.source
    if source.type == "base64":
        url = f"data:{source.media_type};base64,{source.data}"
    else:
        url = data_url(source.url or f"{source.type}:", where=f"{where}.source")
    return {"type": "image_url", "image_url": {"url": url}}


def _unsupported(kind: str, where: str) -> BadRequest:
    return BadRequest(f"{where}: content of type '{kind}' is not supported", param=where)


def _tools(told: tuple[_Tool, ...], choice: _ToolChoice | None) -> dict[str, object]:
    for number, tool in enumerate(told):
        if tool.type not in (None, "custom"):
            where = f"tools.{number}"
            reason = (
                f"{where}: '{tool.type}' is a tool of Anthropic's own, which is not offered here"
            )
            raise BadRequest(reason, param=where)
    if choice is not None and choice.type == "tool":
        # The child takes no name, so that the named tool is the only one it is told of.
        told = tuple(tool for tool in told if tool.name == choice.name)
        if not told:
            raise BadRequest(f"tool_choice: tool '{choice.name}' not found", param="tool_choice")
    if not told:
        return {}
    body: dict[str, object] = {"tools": [_function(tool) for tool in told]}
    if choice is not None:
        body["tool_choice"] = _CHOICES[choice.type]
        if choice.disable_parallel_tool_use:
            body["parallel_tool_calls"] = False
    return body


_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def _function(tool: _Tool) -> dict[str, object]:
    told = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": told}


def _thinking(told: _Thinking | None) -> dict[str, object]:
    """Thinking that is not asked for is off, as Anthropic has it."""
    thinks = told is not None and told.type != "disabled"
    body: dict[str, object] = {"chat_template_kwargs": {"enable_thinking": thinks}}
    if told is not None and thinks and told.budget_tokens is not None:
        body["thinking_budget_tokens"] = told.budget_tokens
    return body


def _output(told: _OutputConfig | None) -> dict[str, object]:
    body: dict[str, object] = {}
    if told is not None and told.effort is not None:
        body["reasoning_effort"] = told.effort
    if told is not None and told.format is not None and told.format.schema != ABSENT:
        schema = {"name": "schema", "schema": told.format.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
