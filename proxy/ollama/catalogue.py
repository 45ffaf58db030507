"""What is there: /api/tags, /api/ps, /api/show and their kin."""

import math
from collections.abc import Sequence
from time import time
from typing import Any

import msgspec
from msgspec.structs import replace

from planners.capabilities import capabilities
from planners.hardware import HOST
from planners.model import ServedModel
from planners.recipe import ParameterValue
from planners.sizes import parameter_size
from planners.view import InstanceState, Observed
from proxy import names
from proxy.door import Door
from proxy.errors import BadRequest
from proxy.exchange import TEXT, Exchange
from proxy.ollama.fields import read_object
from proxy.ollama.modelfile import modelfile, parameters, template_source
from proxy.ollama.replies import FOREVER_AT_S, rfc3339

_SHOWN_STATES = (InstanceState.LOADING, InstanceState.READY, InstanceState.DRAINING)
_HIDDEN_KEYS = ("general.name", "tokenizer.chat_template")


async def root(door: Door, exchange: Exchange) -> None:
    """GET, HEAD /: what the CLI takes for a heartbeat."""
    await exchange.reply(200, b"Ollama is running", content_type=TEXT)


async def version(door: Door, exchange: Exchange) -> None:
    """GET, HEAD /api/version."""
    await exchange.reply_json({"version": door.settings.version})


async def status(door: Door, exchange: Exchange) -> None:
    """GET /api/status: the cloud is off."""
    await exchange.reply_json({"cloud": {"disabled": True, "source": "config"}})


async def tags(door: Door, exchange: Exchange) -> None:
    """GET, HEAD /api/tags: the models offered, newest first."""
    await exchange.reply(200, door.listed.told(_tags, door.service.models()))


async def ps(door: Door, exchange: Exchange) -> None:
    """GET /api/ps: the models loaded, longest remaining first."""
    loaded = [
        (instance, model)
        for instance in door.service.running()
        if instance.state in _SHOWN_STATES
        and (model := door.service.resolve(instance.model_id)) is not None
    ]
    loaded.sort(key=lambda pair: -_expires_at(pair[0]))
    await exchange.reply_json({"models": [_process(instance, model) for instance, model in loaded]})


async def show(door: Door, exchange: Exchange) -> None:
    """POST /api/show: all that is known of one model."""
    fields = read_object(
        await exchange.body(limit_bytes=door.settings.max_body_bytes), "ShowRequest"
    )
    name = fields.text("model") or fields.text("name")
    is_verbose, system = fields.flag("verbose"), fields.text("system")
    options = fields.mapping("options")
    if not name:
        raise BadRequest("model is required")
    unknown = f"model '{names.display(name)}' not found"
    host = names.served(door, exchange, name, unknown=unknown)
    model = _as_asked(door.service.offered(name) or host, system, options)
    copilot = exchange.header(b"user-agent").startswith(b"GitHubCopilotChat/")
    shown = _shown(model, name, basename=name if copilot else None)
    await exchange.reply_json(shown | ({"tensors": _tensors(model)} if is_verbose else {}))


def _as_asked(model: ServedModel, system: str, options: dict[str, Any]) -> ServedModel:
    """The model as it would be with another system prompt, and more parameters."""
    recipe = model.recipe
    told: dict[str, ParameterValue] = {}
    for key, value in options.items():
        if isinstance(value, list):
            told[key] = tuple(map(str, value))
        elif isinstance(value, str | int | float):
            told[key] = value
    parameters = {**dict(recipe.parameters), **told}
    recipe = replace(recipe, parameters=tuple(parameters.items()), system=system or recipe.system)
    return replace(model, recipe=recipe)


def _tensors(model: ServedModel) -> list[dict[str, object]]:
    """The file's, by their names there."""
    named = [(weight.name, weight) for weight in model.info.ends]
    for at, layer in enumerate(model.info.layers):
        named += [(f"blk.{at}.{weight.name}", weight) for weight in layer.weights]
    return [
        {"name": name, "type": weight.type_name.upper(), "shape": weight.shape}
        for name, weight in named
    ]


def _tags(models: Sequence[ServedModel]) -> bytes:
    newest = sorted(models, key=lambda model: -model.modified_at)
    return msgspec.json.encode({"models": [_tag(model) for model in newest]})


def _details(model: ServedModel) -> dict[str, object]:
    family = model.info.architecture
    return {
        "parent_model": "", "format": "gguf", "family": family, "families": [family],
        "parameter_size": parameter_size(model.info.n_params),
        "quantization_level": model.info.quantization,
    }  # fmt: skip


def _capabilities(model: ServedModel) -> list[str]:
    return [capability.value for capability in capabilities(model)]


def _tag(model: ServedModel) -> dict[str, object]:
    name = names.display(model.model_id)
    lengths = {"context_length": model.info.n_ctx_train, "embedding_length": model.info.n_embd}
    return {
        "name": name, "model": name, "modified_at": rfc3339(model.modified_at),
        "size": model.size_bytes, "digest": model.shown_digest,
        "details": _details(model) | lengths, "capabilities": _capabilities(model),
    }  # fmt: skip


def _process(instance: Observed, model: ServedModel) -> dict[str, object]:
    name = names.display(model.model_id)
    parts = instance.measured or instance.plan.predicted
    return {
        "name": name, "model": name, "size": sum(part.total_bytes for part in parts),
        "digest": model.shown_digest, "details": _details(model),
        "expires_at": rfc3339(_expires_at(instance)),
        "size_vram": sum(part.total_bytes for part in parts if part.device_id != HOST),
        "context_length": instance.plan.context,
    }  # fmt: skip


def _expires_at(instance: Observed) -> float:
    """UTC seconds at which it unloads; while it is busy or loading, as if it fell idle now."""
    at = instance.expires_at if instance.expires_at is not None else time() + instance.keep_alive_s
    return FOREVER_AT_S if math.isinf(at) else at


def _shown(model: ServedModel, name: str, *, basename: str | None) -> dict[str, object]:
    info = {key: value for key, value in model.info.metadata if key not in _HIDDEN_KEYS}
    info["general.architecture"] = model.info.architecture
    info["general.parameter_count"] = model.info.n_params
    info.setdefault(f"{model.info.architecture}.context_length", model.info.n_ctx_train)
    info.setdefault("general.basename", model.info.name)
    if basename is not None:
        info["general.basename"] = basename
    is_given = model.template is not None or not model.info.chat_template
    shown: dict[str, object] = {
        "modelfile": modelfile(model, name),
        "details": _details(model),
        "model_info": info,
        "capabilities": _capabilities(model),
        "modified_at": rfc3339(model.modified_at),
    }
    optional = {
        "parameters": parameters(model),
        "template": model.recipe.template if is_given else model.info.chat_template,
        "template_source": template_source(model),
        "system": model.recipe.system,
        "messages": [{"role": one.role, "content": one.content} for one in model.recipe.messages],
        "license": "\n".join(model.recipe.licenses) or info.get("general.license"),
    }
    return shown | {key: value for key, value in optional.items() if value}
