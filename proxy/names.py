"""Model names as Ollama writes them: `[scheme://][host/][namespace/]model[:tag]`."""

import re
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from planners.instances.purposes import for_embeddings
from planners.model import BrokenFile, BrokenKind, ModelId, ServedModel, folded
from planners.near_names import near_names
from proxy.door import Door
from proxy.errors import BadRequest, CloudModel, NotCapable, UnknownModel, UnusableModel
from proxy.exchange import Exchange

MAX_NAME = 600  # a host of 350, and namespace, model and tag of 80 each, as Ollama bounds them

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,79}"
_NAME = re.compile(
    rf"(?:[a-z]+://)?(?:[A-Za-z0-9_][A-Za-z0-9_.:\-]{{0,349}}/)?(?:{_PART}/)*{_PART}(?::{_PART})?"
)


class BadName(BadRequest):
    """A text that can name no model."""

    def __init__(self, message: str = "invalid model name") -> None:
        super().__init__(message, param="model")


def display(name: str) -> str:
    """The name with its tag, "latest" where it has none."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def served(door: Door, exchange: Exchange, name: str, *, unknown: str | None = None) -> ServedModel:
    """The model that `name` means, or the path where it names one, as its caller knows it.

    The process that it has may be another name's (planners.instances.twins).
    Raises UnusableModel, BadName, CloudModel, UnknownModel (saying `unknown`).
    """
    name = exchange.given_model or name
    found = door.service.resolve(name)
    if found is None:
        if (error := unusable(name, door.service.broken())) is not None:
            raise error
        _check(name)
        raise UnknownModel(name, unknown, near=_near(name, door.service.models()))
    own = door.service.offered(name) if found.aliases else None
    if own is not None and own.model_id != found.model_id:
        found = replace(found, model_id=own.model_id, aliases=own.aliases)
    exchange.model = found.model_id
    return found


def calling(
    own: ModelId, host: ModelId, before: Callable[[bytes], bytes] | None
) -> Callable[[bytes], bytes]:
    """How a reply of the process that `host` has is told to who asked for `own`, after `before`.

    Quotes within a text of the model's have a backslash before them, and are not met.
    """
    told, meant = (b'"model":' + msgspec.json.encode(name) for name in (host, own))

    def reworded(reply: bytes) -> bytes:
        return (before(reply) if before is not None else reply).replace(told, meant)

    return reworded


def named(door: Door, exchange: Exchange, name: str | None) -> ServedModel:
    """The model of a body that has to name one, unless the path does. Raises as `served` does."""
    if not (name or exchange.given_model):
        raise BadRequest("model is required", param="model")
    return served(door, exchange, name or "")


def check_writes(model: ServedModel) -> None:
    """Raises BadRequest for a model that gives vectors and no text."""
    if model.info.is_embedding:
        raise BadRequest(f'"{model.model_id}" does not support completions', param="model")


def check_chats(model: ServedModel) -> None:
    """Raises BadRequest for a model whose conversations cannot be put as its maker wants them."""
    if model.template is not None and model.template.why_not:
        raise BadRequest(
            f'"{model.model_id}" cannot chat: its TEMPLATE is not rendered here, for'
            f" {model.template.why_not}; send raw prompts, or create it anew with another TEMPLATE",
            param="model",
        )


def embedder(model: ServedModel) -> ServedModel:
    """What gives the model's embeddings: a text model is launched apart for it.

    Raises NotCapable.
    """
    found = for_embeddings(model)
    if found is None:
        what = (
            "a reranking model" if model.info.is_reranker else "a text model of a kind that cannot"
        )
        because = f"it is {what}; use one made for embeddings"
        raise NotCapable(model.model_id, "embeddings", because=because)
    return found


def unusable(name: str, broken: Iterable[BrokenFile]) -> UnusableModel | UnknownModel | None:
    """Why the model of that name is not offered, where its file or a rule for it is there."""
    wanted = folded(name)
    for file in broken:
        if any(folded(own) == wanted for own in file.names):
            if file.kind is BrokenKind.RULE:
                return UnknownModel(name, f"model '{name}' not found: {file.reason}")
            return UnusableModel(name, file.reason)
    return None


def _near(name: str, models: Iterable[ServedModel]) -> tuple[str, ...]:
    return near_names(name, (own for model in models for own in (model.model_id, *model.aliases)))


def _check(name: str) -> None:
    if len(name) > MAX_NAME:
        raise BadName
    lower = name.lower()
    if ":cloud:" in lower or lower.endswith((":cloud:local", ":local:cloud")):
        raise BadName(f'use either :local or :cloud, not both: "{name}"')
    if lower.endswith((":cloud", "-cloud")) and ":" in name:
        raise CloudModel
    if name and not _NAME.fullmatch(name.strip()):
        raise BadName
