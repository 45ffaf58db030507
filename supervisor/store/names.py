"""Model names as stores keep them: `[scheme://][host/][namespace/]model[:tag]`. Pure.

(Ollama, types/model/name.go.)
"""

import re

from msgspec import Struct

from supervisor.errors import SupervisorError

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
MAX_SHOWN = 80  # characters of a name that is none, in the error about it

_MODEL = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,79}"
_LABEL = r"[A-Za-z0-9_][A-Za-z0-9_\-]*"  # of a host's name; its port is a number
MAX_PORT = 65535
_PARTS = {
    "host": re.compile(rf"(?=.{{1,350}}\Z){_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?", re.ASCII),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}", re.ASCII),
    "model": re.compile(_MODEL, re.ASCII),
    "tag": re.compile(_MODEL, re.ASCII),
}


class BadStoreName(SupervisorError):
    """A text that names nothing a store could hold."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name[:MAX_SHOWN]!r} is not a model name such as smollm2:135m")


class StoreName(Struct, frozen=True):
    """A whole name; every part is a plain file name: none is hidden, none leads upwards."""

    host: str
    namespace: str
    model: str
    tag: str
    is_plain_http: bool = False
    """The name said `http://`."""

    def __post_init__(self) -> None:
        for part, rule in _PARTS.items():
            if not rule.fullmatch(getattr(self, part)):
                raise BadStoreName(self.full)
        port = self.host.partition(":")[2]
        if port and not 1 <= int(port) <= MAX_PORT:
            raise BadStoreName(self.full)

    @property
    def full(self) -> str:
        """All of it: "registry.ollama.ai/library/smollm2:135m"."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """As Ollama shows it: without the usual host and namespace, always with its tag."""
        at = f"{self.host}/" if self.host.lower() != HOST else ""
        of = f"{self.namespace}/" if at or self.namespace.lower() != NAMESPACE else ""
        return f"{at}{of}{self.model}:{self.tag}"

    @property
    def path(self) -> tuple[str, str, str, str]:
        """Its folders and its file below `manifests`."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def folded(self) -> tuple[str, ...]:
        """Equal for names that differ in case alone, which mean the same model."""
        return tuple(part.lower() for part in self.path)


def parse_name(text: str) -> StoreName:
    """The name that `text` means, usual parts added. Raises BadStoreName."""
    scheme, has_scheme, rest = text.strip().rpartition("://")
    if has_scheme and scheme.lower() not in ("http", "https"):
        raise BadStoreName(text)
    rest, tag = _split_tag(rest)
    parts = rest.split("/")
    if len(parts) > 3 or "" in (*parts, tag):
        raise BadStoreName(text)
    *before, model = parts
    namespace = before.pop() if before else NAMESPACE
    host = before.pop() if before else HOST
    try:
        return StoreName(host, namespace, model, tag, is_plain_http=scheme.lower() == "http")
    except BadStoreName as exc:
        raise BadStoreName(text) from exc


def _split_tag(text: str) -> tuple[str, str]:
    """A colon left of the last slash is a host's port."""
    name, colon, tag = text.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (text, TAG)
