"""What a store raises, as refusals with Ollama's statuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import BadRequest
from supervisor.errors import SupervisorError
from supervisor.models.gguf_files import CannotLook
from supervisor.store.digests import BadDigest
from supervisor.store.errors import (
    BlobMissing,
    DigestMismatch,
    NameTaken,
    NoRoom,
    NotOurs,
    NotPushed,
    NotStorable,
    NotStored,
    StoreError,
)
from supervisor.store.manifest import BadManifest
from supervisor.store.names import BadStoreName, StoreName, parse_name
from supervisor.store.pull_errors import PullError

_STATUSES: dict[type[SupervisorError], tuple[int, str]] = {
    NotStored: (404, "model_not_found"),
    NotOurs: (403, "not_ours"),
    NotPushed: (501, "not_pushed"),
    NameTaken: (409, "name_taken"),
    DigestMismatch: (400, "digest_mismatch"),
    BlobMissing: (400, "blob_missing"),
    NotStorable: (400, "not_storable"),
    NoRoom: (507, "no_room"),
    CannotLook: (503, "store_unreadable"),
}


class StoreRefused(BadRequest):
    """The store was not changed as asked."""

    def __init__(self, exc: SupervisorError) -> None:
        told = (_STATUSES[kind] for kind in type(exc).__mro__ if kind in _STATUSES)
        self.status, self.code = next(told, (500, "store_failed"))
        words = str(exc)
        if isinstance(exc, PullError) and exc.ollamas:
            words, self.remedy = exc.ollamas, exc.remedy
        super().__init__(words)


@contextmanager
def in_ollamas_words() -> Iterator[None]:
    """Within: what a store raises is raised as a refusal."""
    try:
        yield
    except (StoreError, BadManifest, CannotLook) as exc:
        raise StoreRefused(exc) from exc
    except BadDigest as exc:
        raise BadRequest("invalid digest format") from exc


def valid_name(text: str, message: str = "invalid model name") -> StoreName:
    """The name that `text` means. Raises BadRequest with `message`."""
    try:
        return parse_name(text)
    except BadStoreName as exc:
        raise BadRequest(message, param="model") from exc
