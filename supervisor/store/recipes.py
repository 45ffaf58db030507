"""A model's layers put together: its weights, and what goes with them. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from planners.model import ModelInfo
from planners.recipe import Message, ParameterValue
from planners.sizes import parameter_size
from supervisor.store.digests import Digest
from supervisor.store.manifest import (
    LICENSE,
    MESSAGES,
    PARAMS,
    PROMPT,
    SYSTEM,
    TEMPLATE,
    Layer,
    Manifest,
)
from supervisor.store.names import StoreName


class Creation(msgspec.Struct, frozen=True):
    """What POST /api/create asks for; None leaves a thing as the base has it."""

    name: StoreName
    base: str | None = None
    """`from`: a model that is there."""
    files: tuple[Digest, ...] = ()
    """Blobs that were uploaded before."""
    adapters: tuple[Digest, ...] = ()
    template: str | None = None
    system: str | None = None
    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    """Laid over the base's."""
    messages: tuple[Message, ...] | None = None
    licenses: tuple[str, ...] = ()
    """Added to the base's."""
    config: tuple[tuple[str, object], ...] = ()
    """Members of the configuration that the request names, such as `requires`."""


class Text(msgspec.Struct, frozen=True):
    """A small layer to be."""

    media_type: str
    data: bytes


def texts(asked: Creation, base: Mapping[str, ParameterValue]) -> tuple[Text, ...]:
    """The layers that the request makes anew; `base` are the base's parameters."""
    made: list[Text] = []
    if asked.template:
        made.append(Text(TEMPLATE, asked.template.encode()))
    if asked.system:
        made.append(Text(SYSTEM, asked.system.encode()))
    if parameters := {**base, **dict(asked.parameters)}:
        made.append(Text(PARAMS, msgspec.json.encode(parameters)))
    if asked.messages:
        told = [{"role": one.role, "content": one.content} for one in asked.messages]
        made.append(Text(MESSAGES, msgspec.json.encode(told)))
    made += [Text(LICENSE, text.encode()) for text in asked.licenses]
    return tuple(made)


def kept(base: Iterable[Layer], asked: Creation) -> tuple[Layer, ...]:
    """The base's layers that the request does not replace."""
    replaced = {PARAMS}
    if asked.template is not None:
        replaced |= {TEMPLATE, PROMPT}
    if asked.system is not None:
        replaced.add(SYSTEM)
    if asked.messages is not None:
        replaced.add(MESSAGES)
    return tuple(layer for layer in base if layer.media_type not in replaced)


def config_of(info: ModelInfo) -> dict[str, object]:
    """What Ollama's configuration blob says of such a model; its list of layers is `rootfs`."""
    return {
        "model_format": "gguf",
        "model_family": info.architecture,
        "model_families": [info.architecture],
        "model_type": parameter_size(info.n_params),
        "file_type": info.quantization,
        "architecture": "amd64",
        "os": "linux",
    }


def rootfs(layers: Iterable[Layer]) -> dict[str, object]:
    """The configuration's list of digests."""
    return {"type": "layers", "diff_ids": [str(layer.digest) for layer in layers]}


def manifest_of(config: Layer, layers: Iterable[Layer]) -> Manifest:
    """A manifest that names every layer once."""
    return Manifest(config, tuple(dict.fromkeys(layers)))
