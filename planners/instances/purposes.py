"""A text model launched for embeddings: another launch of its file, planned apart. Pure."""

import hashlib
from collections.abc import Mapping

from msgspec.structs import replace

from planners.model import ModelId, ServedModel

SUFFIX = "+embeddings"
"""What is added to a model's name for that launch of it."""
POOLING = "last"  # only the last token of a causal model has read the whole text
_ENCODER_DECODERS = ("t5",)  # the engine pools their encoder alone, and not in every build


def for_embeddings(served: ServedModel) -> ServedModel | None:
    """What gives the model's embeddings: itself, or a launch for that; None where nothing does.

    The context that its operator chose for chats is not taken over: an embedding's input is read
    in one batch, whose buffers grow with it.
    """
    info = served.info
    if info.is_embedding:
        return None if info.is_reranker else served
    if info.architecture in _ENCODER_DECODERS:
        return None
    digest = hashlib.sha256(f"{info.digest}{SUFFIX}".encode()).hexdigest()
    return replace(
        served,
        model_id=ModelId(f"{served.model_id}{SUFFIX}"),
        aliases=(),
        info=replace(info, digest=digest, pooling=POOLING),
        settings=replace(
            served.settings, context=None, parallel=None, pin=False, mmproj_path=None,
            draft_path=None,
        ),
        draft=None,
    )  # fmt: skip


def with_embedders(models: Mapping[ModelId, ServedModel]) -> dict[ModelId, ServedModel]:
    """The models, and those of their launches for embeddings that no file has the name of."""
    launches = (for_embeddings(served) for served in models.values())
    found = {served.model_id: served for served in launches if served is not None}
    return {**found, **models}
