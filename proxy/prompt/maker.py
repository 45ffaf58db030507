"""What a model's maker says of how it is asked, put into a request that is silent about it. Pure.

Ollama's own routes have Ollama's defaults besides (proxy.ollama); here only what a recipe names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from planners.recipe import Recipe
from proxy.prompt.options import members_of, read_options, sampling_of

OPENAIS_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
"""What Ollama asks for under /v1 where a request is silent, whatever the model's maker says."""

_OWN_SYSTEM = ("system", "developer")
_SAME = {"n_predict": ("n_predict", "max_tokens", "max_completion_tokens")}
_SILENT = (None, msgspec.Raw(b"null"))

M = TypeVar("M")


class _Said(msgspec.Struct):
    role: str = ""


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])
_SAID = msgspec.json.Decoder(_Said)


def before(recipe: Recipe, *, first_role: str) -> tuple[dict[str, object], ...]:
    """The messages that go before a conversation; its own system prompt replaces the maker's."""
    has_own = not recipe.system or first_role in _OWN_SYSTEM
    system = () if has_own else ({"role": "system", "content": recipe.system},)
    return (*system, *history(recipe))


def history(recipe: Recipe) -> tuple[dict[str, object], ...]:
    """The maker's first messages, in llama-server's shape."""
    return tuple({"role": one.role, "content": one.content} for one in recipe.messages)


def asked_chat(
    told: Mapping[str, Any], recipe: Recipe, *, defaults: Mapping[str, float] | None = None
) -> dict[str, object]:
    """A chat's body with what its model's maker says; what is told goes before. Raises BadOption.

    `defaults`: of a daemon that is as Ollama is, which says all of its options.
    """
    messages = told["messages"]
    first = before(recipe, first_role=str(messages[0]["role"]))
    return {**_members(told, recipe, defaults), **told, "messages": [*first, *messages]}


def asked_body(
    body: bytes, recipe: Recipe, *, chat: bool, defaults: Mapping[str, float] | None = None
) -> bytes:
    """Likewise for a JSON object of OpenAI's; the same bytes where there is nothing to say."""
    adds_messages = chat and bool(recipe.system or recipe.messages)
    if not (recipe.parameters or adds_messages or defaults is not None):
        return body
    told = _MEMBERS.decode(body)
    more = _members(told, recipe, defaults)
    members: dict[str, object] = {**told, **more}
    if adds_messages:
        members["messages"] = _with_first(told.get("messages"), recipe)
    return msgspec.json.encode(members)


def _with_first(told: msgspec.Raw | None, recipe: Recipe) -> object:
    """The messages after the maker's; what is no conversation is left for the child to refuse."""
    try:
        messages = _MESSAGES.decode(told or b"")
        first_role = _SAID.decode(messages[0]).role
    except (msgspec.DecodeError, IndexError):
        return told
    return [*before(recipe, first_role=first_role), *messages]


def _members(
    told: Mapping[str, object], recipe: Recipe, defaults: Mapping[str, float] | None
) -> dict[str, object]:
    """What the request is silent about."""
    if defaults is None:
        said = members_of(recipe)
    else:
        said = dict(read_options({**sampling_of(recipe), **defaults}).sampling)
    return {
        name: value for name, value in said.items() if not _tells(told, _SAME.get(name, (name,)))
    }


def _tells(told: Mapping[str, object], names: Sequence[str]) -> bool:
    return any(told.get(name) not in _SILENT for name in names)
