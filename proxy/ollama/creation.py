"""POST /api/create: a model of another's weights, or of uploaded files, with texts of its own."""

from collections.abc import Iterator
from typing import Any

from planners.modelfile import DROPPED, ROLES
from planners.recipe import Message, ParameterValue
from planners.templates.conversation import read
from planners.templates.go_nodes import BadTemplate, Malformed
from proxy.door import Door
from proxy.errors import BadOption, BadRequest
from proxy.exchange import Exchange
from proxy.ollama.fields import Fields, read_object
from proxy.ollama.management import named
from proxy.ollama.progress import tell
from proxy.ollama.store_errors import valid_name
from proxy.prompt.options import OPTIONS, read_options
from supervisor.store.digests import BadDigest, Digest, parse_digest
from supervisor.store.recipes import Creation

MAX_TEXT_BYTES = 1 << 20  # of all texts of one model: what a store's reader takes of each
_NOT_OFFERED = {
    "quantize": "quantise the GGUF file with llama-quantize, and upload what it writes",
    "quantization": "quantise the GGUF file with llama-quantize, and upload what it writes",
    "draft_files": "name the draft model as draft of the [[model]] in the configuration",
    "draft_quantize": "quantise the draft model with llama-quantize",
    "remote_host": "models of other machines are not offered",
}
_CONFIG = ("renderer", "parser", "requires")


async def create(door: Door, exchange: Exchange) -> None:
    """POST /api/create."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    fields = read_object(body, "CreateRequest")
    asked = read_creation(fields)
    streams = fields.flag("stream", default=True)
    await tell(exchange, door.store.create(asked), streams=streams)


def read_creation(fields: Fields) -> Creation:
    """What a request asks for. Raises BadRequest."""
    name = valid_name(named(fields))
    for field, instead in _NOT_OFFERED.items():
        if fields.value(field):
            raise BadRequest(f"{field} is not offered here: {instead}", param=field)
    base, files = fields.text("from"), tuple(_digests(fields, "files"))
    adapters = tuple(_digests(fields, "adapters"))
    if not base and not files:
        raise BadRequest("neither 'from' or 'files' was specified")
    if len(adapters) > 1:
        raise BadRequest("only one adapter is currently supported", param="adapters")
    if base:
        valid_name(base)
    return _bounded(
        Creation(
            name=name,
            base=base or None,
            files=files,
            adapters=adapters,
            template=_template(fields),
            system=_told(fields, "system"),
            parameters=tuple(_parameters(fields.mapping("parameters"))),
            messages=tuple(_messages(fields)) if "messages" in fields else None,
            licenses=_licenses(fields),
            config=tuple((key, fields.text(key)) for key in _CONFIG if fields.text(key)),
        )
    )


def _told(fields: Fields, name: str) -> str | None:
    """A text, None where the request has none: an empty one leaves the base's as it is."""
    return fields.text(name) or None


def _template(fields: Fields) -> str | None:
    """Likewise; one that is only beyond what is rendered here is kept. Raises BadRequest."""
    told = _told(fields, "template")
    try:
        read(told or "")
    except Malformed as exc:
        raise BadRequest(f"template error: {exc}", param="template") from exc
    except BadTemplate:
        pass
    return told


def _digests(fields: Fields, name: str) -> Iterator[Digest]:
    """The files of a request. Their names say nothing, but hostile ones are refused."""
    for path, told in fields.mapping(name).items():
        if not path or path.startswith(("/", "~")) or "\\" in path or ".." in path.split("/"):
            raise BadRequest("file path must be relative", param=name)
        if path.endswith((".safetensors", ".bin", ".pt")):
            wanted = "convert it with llama.cpp's convert_hf_to_gguf.py, and upload the GGUF file"
            raise BadRequest(f"{path[:80]} cannot be converted here: {wanted}", param=name)
        try:
            yield parse_digest(told if isinstance(told, str) else "")
        except BadDigest as exc:
            raise BadRequest("invalid digest format", param=name) from exc


def _parameters(told: dict[str, Any]) -> Iterator[tuple[str, ParameterValue]]:
    """Ollama's options; a list of one stands for its value. Raises BadRequest."""
    for name, value in told.items():
        if value is None or name in DROPPED:
            continue
        kind = OPTIONS.get(name)
        if kind is None:
            raise BadRequest(f"unknown parameter '{name[:80]}'", param="parameters")
        if kind == "array":
            value = [value] if isinstance(value, str) else value
        elif isinstance(value, list) and value:
            value = value[-1]
        try:
            read_options({name: value})
        except BadOption as exc:
            raise BadRequest(str(exc), param="parameters") from exc
        yield name, tuple(value) if isinstance(value, list) else value


def _messages(fields: Fields) -> Iterator[Message]:
    for message in fields.children("messages", "Message"):
        role = message.text("role").lower()
        if role not in ROLES:
            raise BadRequest(f"role must be one of {', '.join(ROLES)}", param="messages")
        yield Message(role, message.text("content"))


def _licenses(fields: Fields) -> tuple[str, ...]:
    """One text, or several."""
    if isinstance(fields.value("license"), list):
        return tuple(text for text in fields.texts("license") if text)
    text = fields.text("license")
    return (text,) if text else ()


def _bounded(asked: Creation) -> Creation:
    """The same. Raises BadRequest where its texts are longer than a store keeps."""
    texts = [asked.template, asked.system, *asked.licenses]
    texts += [message.content for message in asked.messages or ()]
    if sum(len(text.encode()) for text in texts if text) > MAX_TEXT_BYTES:
        raise BadRequest(f"the model's texts are longer than {MAX_TEXT_BYTES} bytes together")
    return asked
