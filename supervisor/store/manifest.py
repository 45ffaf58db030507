"""Manifests: which blobs make a model, and what each of them is. Pure: bytes in, values out.

(Ollama, manifest/manifest.go; the layers' media types are in types/model.)
"""

import hashlib
from collections.abc import Iterator

import msgspec

from supervisor.errors import SupervisorError
from supervisor.store.digests import BadDigest, Digest, parse_digest

MAX_MANIFEST_BYTES = 1 << 20  # the longest of Ollama's library is 2 KiB
MAX_LAYERS = 1024  # safetensors models have one for each tensor
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_IMAGE = "application/vnd.ollama.image."
MODEL, PROJECTOR, ADAPTER = f"{_IMAGE}model", f"{_IMAGE}projector", f"{_IMAGE}adapter"
TEMPLATE, PROMPT, SYSTEM = f"{_IMAGE}template", f"{_IMAGE}prompt", f"{_IMAGE}system"
PARAMS, MESSAGES, LICENSE = f"{_IMAGE}params", f"{_IMAGE}messages", f"{_IMAGE}license"
DRAFT, TENSOR = f"{_IMAGE}draft", f"{_IMAGE}tensor"


class BadManifest(SupervisorError):
    """What should be a manifest is none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"its manifest cannot be read: {reason}")


class Layer(msgspec.Struct, frozen=True):
    """One blob, and what it is to the model."""

    media_type: str
    digest: Digest
    size_bytes: int
    source: str = ""
    """`from`: the model that it was taken from."""


class Manifest(msgspec.Struct, frozen=True):
    """A model's blobs."""

    config: Layer
    layers: tuple[Layer, ...]

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """The layers, and the configuration at the end, as they are fetched."""
        return (*self.layers, self.config)

    @property
    def size_bytes(self) -> int:
        """Of all blobs, as Ollama adds them up."""
        return sum(layer.size_bytes for layer in self.all_layers)

    def of_type(self, *media_types: str) -> Iterator[Layer]:
        """The layers of those types, in order."""
        return (layer for layer in self.layers if layer.media_type in media_types)


class _WireLayer(msgspec.Struct, omit_defaults=True):
    mediaType: str
    digest: str
    size: int
    from_: str = msgspec.field(name="from", default="")


class _WireManifest(msgspec.Struct):
    schemaVersion: int
    mediaType: str
    config: _WireLayer
    layers: list[_WireLayer]


class _ReadManifest(msgspec.Struct):
    config: _WireLayer
    layers: list[_WireLayer] = []


_DECODER = msgspec.json.Decoder(_ReadManifest)


def read_manifest(data: bytes) -> Manifest:
    """The manifest that `data` holds; what is unknown in it is left out. Raises BadManifest."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise BadManifest(f"it is longer than {MAX_MANIFEST_BYTES} bytes")
    try:
        told = _DECODER.decode(data)
        if len(told.layers) > MAX_LAYERS:
            raise BadManifest(f"it has more than {MAX_LAYERS} layers")
        return Manifest(_layer(told.config), tuple(map(_layer, told.layers)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadDigest) as exc:
        raise BadManifest(str(exc)) from exc


def written(manifest: Manifest) -> bytes:
    """The manifest as a file."""
    return msgspec.json.encode(
        _WireManifest(
            schemaVersion=2,
            mediaType=MANIFEST_TYPE,
            config=_wire(manifest.config),
            layers=[_wire(layer) for layer in manifest.layers],
        )
    )


def digest_of(data: bytes) -> Digest:
    """The digest of a small blob, or of a manifest."""
    return Digest(hashlib.sha256(data).hexdigest())


def _layer(told: _WireLayer) -> Layer:
    if told.size < 0:
        raise BadManifest(f"layer {told.digest[:80]} has {told.size} bytes")
    return Layer(told.mediaType, parse_digest(told.digest), told.size, told.from_)


def _wire(layer: Layer) -> _WireLayer:
    return _WireLayer(layer.media_type, str(layer.digest), layer.size_bytes, layer.source)
