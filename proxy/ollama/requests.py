"""The bodies of /api/chat and /api/generate as typed values, and as llama-server takes them."""

import base64
import binascii
from typing import Any

import msgspec

from planners.recipe import Recipe
from planners.templates.conversation import Said, Template, infill, prompt, read
from planners.templates.go_nodes import BadTemplate
from proxy.errors import BadOption, BadRequest
from proxy.ollama.fields import Fields, WrongType, read_object
from proxy.prompt.maker import before, history
from proxy.prompt.options import Options, read_options, sampling_of

THINK_LEVELS = ("high", "medium", "low", "max")


class Common(msgspec.Struct, frozen=True):
    """What both requests have."""

    model: str
    stream: bool
    keep_alive_s: float | None
    think: bool | str | None
    format: object
    """A JSON schema, "json", or None."""
    logprobs: bool
    top_logprobs: int
    truncate: bool
    """Left out, nothing is dropped, unless the daemon is to be as Ollama is."""
    render_only: bool
    told_options: dict[str, Any]

    def options(self, recipe: Recipe) -> Options:
        """Those of the recipe where the request is silent.

        Read late, since an unload is granted whatever they are. Raises BadOption.
        """
        told = {key: value for key, value in self.told_options.items() if value is not None}
        return read_options(sampling_of(recipe) | told)


class ChatRequest(msgspec.Struct, frozen=True):
    """POST /api/chat."""

    common: Common
    messages: tuple[dict[str, object], ...]
    """In llama-server's (OpenAI's) shape."""
    tools: tuple[object, ...]

    def told(self, recipe: Recipe) -> tuple[dict[str, object], ...]:
        """The messages after the recipe's; its system prompt goes first, unless they have one."""
        return (*before(recipe, first_role=str(self.messages[0]["role"])), *self.messages)


class GenerateRequest(msgspec.Struct, frozen=True):
    """POST /api/generate."""

    common: Common
    prompt: str
    suffix: str
    system: str
    raw: bool
    context: tuple[int, ...]
    images: tuple[str, ...]
    template: Template | None = None
    """Of Go's, to be used instead of the model's own."""

    @property
    def is_empty(self) -> bool:
        """True where nothing is to be generated: a load, or an unload."""
        return not self.prompt and not self.suffix and not self.images

    def rendered(self, template: Template, recipe: Recipe) -> str:
        """The prompt as `template` has it. Raises BadRequest for what that makes no text of."""
        told = self.system or recipe.system
        system = (Said("system", told),) if told else ()
        before = () if self.context else tuple(Said(m.role, m.content) for m in recipe.messages)
        try:
            if self.suffix:
                return infill(template, prefix=self.prompt, suffix=self.suffix)
            return prompt(template, (*system, *before, Said("user", self.prompt)))
        except BadTemplate as exc:
            raise BadRequest(f"template error: {exc}") from exc

    def messages(self, recipe: Recipe) -> tuple[dict[str, object], ...]:
        """The prompt as a chat, for the model's template; a `context` has its own history."""
        told = self.system or recipe.system
        system = ({"role": "system", "content": told},) if told else ()
        said = () if self.context else history(recipe)
        return (*system, *said, {"role": "user", "content": content(self.prompt, self.images)})


def read_chat(body: bytes, *, truncates: bool = False) -> ChatRequest:
    """The request in `body`; `truncates`: where it does not say. Raises BadRequest."""
    fields = read_object(body, "ChatRequest")
    tools = fields.items("tools", "api.Tools")
    for tool in tools:
        if not isinstance(tool, dict):
            raise WrongType(value=tool, field="ChatRequest.tools", wanted="api.Tool")
    messages = tuple(_message(message) for message in fields.children("messages", "Message"))
    common = _common(fields, truncates=truncates)
    return ChatRequest(common=common, messages=messages, tools=tuple(tools))


def read_generate(body: bytes, *, truncates: bool = False) -> GenerateRequest:
    """The request in `body`; `truncates`: where it does not say. Raises BadRequest."""
    fields = read_object(body, "GenerateRequest")
    raw, template = fields.flag("raw"), fields.text("template")
    system, context = fields.text("system"), fields.whole_numbers("context")
    if raw and (template or system or context):
        raise BadRequest("raw mode does not support template, system, or context")
    images = fields.texts("images")
    if template and images:
        raise BadRequest("images are put in place by the model's own template: leave out template")
    return GenerateRequest(
        common=_common(fields, truncates=truncates),
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        system=system,
        raw=raw,
        context=context,
        images=images,
        template=_template(template) if template else None,
    )


def _template(told: str) -> Template:
    try:
        return read(told)
    except BadTemplate as exc:
        raise BadRequest(f"template error: {exc}") from exc


def _common(fields: Fields, *, truncates: bool) -> Common:
    top_logprobs = fields.whole("top_logprobs")
    if not 0 <= top_logprobs <= 20:
        raise BadRequest("top_logprobs must be between 0 and 20")
    return Common(
        model=fields.text("model"),
        stream=fields.flag("stream", default=True),
        keep_alive_s=fields.keep_alive_s(),
        think=_think(fields.value("think")),
        format=None if (told := fields.value("format")) == "" else told,
        logprobs=fields.flag("logprobs"),
        top_logprobs=top_logprobs,
        # Without a shift Ollama cuts no text either; here nothing is ever shifted.
        truncate=fields.flag("truncate", default=fields.flag("shift", default=True) and truncates),
        render_only=fields.flag("_debug_render_only"),
        told_options=fields.mapping("options"),
    )


def _think(value: object) -> bool | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value in THINK_LEVELS:
        return value
    told = f'"{value}"' if isinstance(value, str) else str(value)
    levels = ", ".join(f'"{level}"' for level in THINK_LEVELS)
    raise BadRequest(f"invalid think value: {told} (must be {levels}, true, or false)")


def _message(fields: Fields) -> dict[str, object]:
    message: dict[str, object] = {
        "role": fields.text("role").lower(),
        "content": content(fields.text("content"), fields.texts("images")),
    }
    if calls := [_tool_call(call) for call in fields.children("tool_calls", "ToolCall")]:
        message["tool_calls"] = calls
    if call_id := fields.text("tool_call_id"):
        message["tool_call_id"] = call_id
    if name := fields.text("tool_name") or fields.text("name"):
        message["name"] = name
    return message


def _tool_call(call: Fields) -> dict[str, object]:
    function = call.child("function", "ToolCallFunction")
    arguments = msgspec.json.encode(function.mapping("arguments")).decode()
    told = {"name": function.text("name"), "arguments": arguments}
    return {"id": call.text("id"), "type": "function", "function": told}


def content(text: str, images: tuple[str, ...]) -> object:
    """A message's content: the text, or text and media as parts."""
    if not images:
        return text
    return [{"type": "text", "text": text}, *(_media(image) for image in images)]


def _media(told: str) -> dict[str, object]:
    """One base64 image, or audio, told apart by its first bytes."""
    try:
        head = base64.b64decode(told[:24] + "=" * (-len(told[:24]) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise BadRequest("illegal base64 data in images") from exc
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return {"type": "input_audio", "input_audio": {"data": told, "format": "wav"}}
    if head[:3] == b"ID3" or head[:2] in (b"\xff\xfb", b"\xff\xf3"):
        return {"type": "input_audio", "input_audio": {"data": told, "format": "mp3"}}
    kind = next((kind for magic, kind in _IMAGES if head.startswith(magic)), "jpeg")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{told}"}}


_IMAGES = ((b"\x89PNG", "png"), (b"GIF8", "gif"), (b"RIFF", "webp"))


# Progress of the prompt is asked for because a child that writes notices that the caller left.
_STREAMED = {"stream": True, "cache_prompt": True, "return_progress": True}


def chat_body(
    messages: tuple[dict[str, object], ...],
    common: Common,
    options: Options,
    tools: tuple[object, ...] = (),
) -> dict[str, object]:
    """The body of llama-server's /v1/chat/completions; its /apply-template takes the same."""
    body: dict[str, object] = {
        "messages": messages,
        **_STREAMED,
        **dict(options.sampling),
    }
    if tools:
        body["tools"] = tools
    if common.logprobs:
        body |= {"logprobs": True, "top_logprobs": max(common.top_logprobs, 1)}
    if (schema := schema_of(common.format)) is not None:
        told = {"name": "schema", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": told}
    if common.think is not None:
        kwargs: dict[str, object] = {"enable_thinking": bool(common.think)}
        if isinstance(common.think, str):
            kwargs["reasoning_effort"] = common.think
        body["chat_template_kwargs"] = kwargs
    if messages[-1]["role"] == "assistant" and messages[-1]["content"]:
        # A partial answer is continued; llama-server would repeat it in its reply, Ollama does not.
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def completion_body(common: Common, options: Options) -> dict[str, object]:
    """The body of llama-server's /completion and /infill, without the prompt."""
    body: dict[str, object] = {
        **_STREAMED,
        **dict(options.sampling),
    }
    if common.logprobs:
        body["n_probs"] = max(common.top_logprobs, 1)
    if (schema := schema_of(common.format)) is not None:
        body["json_schema"] = schema
    return body


def schema_of(told: object) -> object:
    """The JSON schema that a `format` means; None where it means none. Raises BadOption.

    "json", and a schema that says nothing, are any object: llama-server's own json_object, and an
    empty schema, do not constrain the output (b10434).
    """
    if told in ("json", {}):
        return {"type": "object"}
    if told is None or isinstance(told, dict):
        return told
    shown = msgspec.json.encode(told).decode()
    raise BadOption(
        f'invalid format: {shown}; expected "json" or a valid JSON Schema object', param="format"
    )
