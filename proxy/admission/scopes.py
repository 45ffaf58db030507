"""Which scope of key each route needs: one table. Pure.

A route that is not in it needs `admin`: one that is forgotten here is locked, and a test says so.
"""

from proxy.admission.keys import Scope

LIVENESS = frozenset(("/", "/health"))
"""What answers without a key: that something listens, and no more."""

_SCOPES = {
    "/api/version": Scope.INFER,
    "/api/status": Scope.INFER,
    "/api/tags": Scope.INFER,
    "/api/ps": Scope.INFER,
    "/api/show": Scope.INFER,
    "/api/chat": Scope.INFER,
    "/api/generate": Scope.INFER,
    "/api/embed": Scope.INFER,
    "/api/embeddings": Scope.INFER,
    "/api/me": Scope.INFER,
    "/api/signout": Scope.INFER,
    "/api/experimental/web_search": Scope.INFER,
    "/api/experimental/web_fetch": Scope.INFER,
    "/api/experimental/model-recommendations": Scope.INFER,
    "/api/pull": Scope.MANAGE,
    "/api/push": Scope.MANAGE,
    "/api/create": Scope.MANAGE,
    "/api/copy": Scope.MANAGE,
    "/api/delete": Scope.MANAGE,
    "/metrics": Scope.MANAGE,
    "/completion": Scope.INFER,
    "/completions": Scope.INFER,
    "/infill": Scope.INFER,
    "/tokenize": Scope.INFER,
    "/detokenize": Scope.INFER,
    "/apply-template": Scope.INFER,
    "/props": Scope.INFER,
    "/slots": Scope.INFER,
    "/lora-adapters": Scope.INFER,
    "/embedding": Scope.INFER,
    "/embeddings": Scope.INFER,
    "/rerank": Scope.INFER,
    "/reranking": Scope.INFER,
}
_BELOW = (
    ("/v1/", Scope.INFER),
    ("/upstream/", Scope.INFER),
    ("/api/blobs/", Scope.MANAGE),
    ("/api/user/keys/", Scope.INFER),
)
_READING = ("GET", "HEAD")


def is_listed(path: str) -> bool:
    """True where the table has the path."""
    return path in LIVENESS or path in _SCOPES or any(path.startswith(at) for at, _ in _BELOW)


def scope_of(method: str, path: str) -> Scope | None:
    """What a request needs, by its path without double slashes; None where it needs no key."""
    if path in LIVENESS:
        return None
    scope = _SCOPES.get(path.rstrip("/")) or _scope_below(path.rstrip("/"))
    if method == "DELETE" and path.startswith("/v1/models/"):
        return max(scope, Scope.MANAGE)
    return scope


def _scope_below(path: str) -> Scope:
    return next((scope for at, scope in _BELOW if path.startswith(at)), Scope.ADMIN)


def is_management(method: str, path: str) -> bool:
    """True for what changes which models there are: all that `server.manage` may close."""
    scope = scope_of(method, path)
    return scope is not None and scope >= Scope.MANAGE and method not in _READING
