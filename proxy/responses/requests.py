"""Requests for a response, read once, and the chat that the child is asked instead.

The child has a route of this dialect, which drops text.format and takes no tool by its name
(llama.cpp server-chat.cpp).
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from proxy.bodies import decoded
from proxy.chat.media import data_url
from proxy.chat.turn import STREAMED, read_whole
from proxy.child.chunks import ABSENT, NULL
from proxy.errors import BadRequest


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | tuple[_Part, ...] | None = None
    summary: tuple[_Part, ...] = ()
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | tuple[_Part, ...] = ""


class _Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = NULL


class _Choice(msgspec.Struct):
    type: str
    name: str = ""
    mode: str = "auto"
    tools: tuple["_Choice", ...] = ()


class _Format(msgspec.Struct):
    type: str = "text"
    name: str = "schema"
    schema: msgspec.Raw = ABSENT


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponseRequest(msgspec.Struct):
    """What is read of a request; members that a reply repeats stay JSON."""

    model: str | None = None
    input: str | tuple[_Item, ...] | None = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: msgspec.Raw = NULL
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool | None = None
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    text: msgspec.Raw = NULL
    reasoning: msgspec.Raw = NULL
    metadata: msgspec.Raw = NULL
    truncation: Literal["auto", "disabled"] | None = None
    keep_alive: float | str | None = None
    """Ours: as in Ollama's dialect."""
    num_ctx: int | None = None
    """Ours too."""

    @property
    def truncates(self) -> bool:
        """Whether the oldest of the input may be left out."""
        return self.truncation == "auto"


_REQUEST = msgspec.json.Decoder(ResponseRequest)
_TOOLS = msgspec.json.Decoder(tuple[_Tool, ...] | None)
_CHOICE = msgspec.json.Decoder(str | _Choice | None)
_TEXT = msgspec.json.Decoder(_Text | None)
_REASONING = msgspec.json.Decoder(_Reasoning | None)


def read_request(body: bytes) -> ResponseRequest:
    """The request in `body`. Raises BadRequest, also for what needs stored responses."""
    asked = read_whole(body, _REQUEST)
    if asked.previous_response_id:
        reason = "previous_response_id is not supported: responses are not stored; send all input"
        raise BadRequest(reason, param="previous_response_id")
    if asked.conversation != NULL:
        reason = "conversation is not supported: nothing is stored; send all input"
        raise BadRequest(reason, param="conversation")
    if asked.background:
        reason = "background is not supported: responses are not stored; stream them instead"
        raise BadRequest(reason, param="background")
    if asked.input is None:
        raise BadRequest("input is required", param="input")
    if asked.max_output_tokens is not None and asked.max_output_tokens < 1:
        raise BadRequest("max_output_tokens must be at least 1", param="max_output_tokens")
    return asked


def chat_body(asked: ResponseRequest, *, thinks: bool = False) -> dict[str, object]:
    """The body of llama-server's /v1/chat/completions, for a model that `thinks` or not.

    Raises BadRequest for what is not offered.
    """
    items = (
        (_Item(role="user", content=asked.input),) if isinstance(asked.input, str) else asked.input
    )
    messages = _messages(asked.instructions, items or ())
    if not messages:
        raise BadRequest("input must hold at least one item", param="input")
    body: dict[str, object] = {"messages": messages, **STREAMED}
    told = {
        "max_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
    }
    body |= {key: value for key, value in told.items() if value is not None}
    body |= _tools(asked)
    body |= _format(asked.text)
    if thinks:
        body["timings_per_token"] = True  # usage tells the tokens of thoughts apart
    reasoning = decoded(bytes(asked.reasoning), _REASONING)
    if reasoning is not None and reasoning.effort is not None:
        body["reasoning_effort"] = reasoning.effort
        if reasoning.effort == "none":
            body["chat_template_kwargs"] = {"enable_thinking": False}
    return body


def _messages(instructions: str | None, items: Iterable[_Item]) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        _add(messages, item, f"input.{number}")
    return messages


def _add(messages: list[dict[str, object]], item: _Item, where: str) -> None:
    """Adds an item: a message, or what belongs to the assistant's."""
    match item.type, item.role:
        case "message", "user":
            messages.append({"role": "user", "content": _content(item.content, where)})
        case "message", "system" | "developer":
            _add_system(messages, _text(item.content, where))
        case "message", "assistant":
            message = _assistants(messages)
            message["content"] = str(message["content"]) + _text(item.content, where)
        case "function_call", _:
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            message = _assistants(messages)
            message["tool_calls"] = [*_list(message.get("tool_calls")), call]
        case "function_call_output", _:
            content = _content(item.output, where)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        case "reasoning", _:
            thoughts = item.content if isinstance(item.content, tuple) else ()
            text = "".join(part.text for part in thoughts or item.summary)
            if text:
                _assistants(messages)["reasoning_content"] = text
        case "message", role:
            reason = f"{where}: role must be user, assistant, system or developer, not '{role}'"
            raise BadRequest(reason, param=where)
        case kind, _:
            raise BadRequest(f"{where}: an item of type '{kind}' is not supported", param=where)


def _add_system(messages: list[dict[str, object]], text: str) -> None:
    """Templates want one system message, and first."""
    if messages and messages[-1]["role"] == "system":
        messages[-1]["content"] = f"{messages[-1]['content']}\n\n{text}"
    else:
        messages.append({"role": "system", "content": text})


def _assistants(messages: list[dict[str, object]]) -> dict[str, object]:
    """The assistant's message that is being put together from its items."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _list(told: object) -> list[object]:
    return told if isinstance(told, list) else []


def _text(content: str | tuple[_Part, ...] | None, where: str) -> str:
    """Content that may hold texts only."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("input_text", "output_text", "text", "refusal"):
            raise BadRequest(
                f"{where}: content of type '{part.type}' is not supported", param=where
            )
    return "".join(part.text or part.refusal for part in content)


def _content(content: str | tuple[_Part, ...] | None, where: str) -> object:
    """Content that may hold images."""
    if content is None or isinstance(content, str):
        return content or ""
    if all(part.type != "input_image" for part in content):
        texts = [{"type": "text", "text": _text((part,), where)} for part in content]
        return texts[0]["text"] if len(texts) == 1 else texts
    return [_part(part, where) for part in content]


def _part(part: _Part, where: str) -> dict[str, object]:
    if part.type != "input_image":
        return {"type": "text", "text": _text((part,), where)}
    url = data_url(part.image_url or "file_id:", where=f"{where}.image_url")
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(asked: ResponseRequest) -> dict[str, object]:
    """The functions; a tool of OpenAI's own, which some clients always send, is never called."""
    tools = [tool for tool in decoded(bytes(asked.tools), _TOOLS) or () if tool.type == "function"]
    choice = decoded(bytes(asked.tool_choice), _CHOICE)
    mode = "auto"
    if isinstance(choice, str):
        mode = choice
    elif choice is not None:
        # The child takes no names, so that the named tools are the only ones it is told of.
        named = {told.name for told in choice.tools or (choice,)}
        mode = choice.mode if choice.type == "allowed_tools" else "required"
        tools = [tool for tool in tools if tool.name in named]
        if not tools:
            reason = f"tool_choice names no function of tools: {', '.join(sorted(named))}"
            raise BadRequest(reason, param="tool_choice")
    if mode not in ("auto", "none", "required"):
        raise BadRequest(f"tool_choice: '{mode}' is not known", param="tool_choice")
    if not tools:
        return {}
    body: dict[str, object] = {"tools": [_function(tool) for tool in tools], "tool_choice": mode}
    if asked.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = asked.parallel_tool_calls
    return body


def _function(tool: _Tool) -> dict[str, object]:
    told: dict[str, object] = {"name": tool.name, "description": tool.description or ""}
    if tool.parameters != NULL:
        told["parameters"] = tool.parameters
    return {"type": "function", "function": told}


def _format(told: msgspec.Raw) -> dict[str, object]:
    text = decoded(bytes(told), _TEXT)
    if text is None or text.format is None or text.format.type == "text":
        return {}
    # llama-server's own json_object does not constrain the output (b10434); any object does.
    schema: object = {"type": "object"}
    if text.format.type == "json_schema":
        if text.format.schema == ABSENT:
            raise BadRequest("text.format.schema is required", param="text.format.schema")
        schema = text.format.schema
    elif text.format.type != "json_object":
        reason = f"text.format: type '{text.format.type}' is not known"
        raise BadRequest(reason, param="text.format")
    named = {"name": text.format.name, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}
