"""proxy.admission.scopes: every route has its scope."""

import pytest

from proxy.admission.keys import Scope
from proxy.admission.scopes import LIVENESS, is_listed, is_management, scope_of
from proxy.app import ROUTES


def test_every_route_has_a_scope_in_the_table() -> None:
    """A route that is missing here is not open: it needs `admin`, until the table names it."""
    assert [path for path in ROUTES if not is_listed(path)] == []


def test_liveness_alone_needs_no_key() -> None:
    open_ = {path for path in ROUTES if scope_of("GET", path) is None}

    assert open_ == LIVENESS == {"/", "/health"}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", Scope.INFER),
        ("GET", "/v1/models/a/b", Scope.INFER),
        ("DELETE", "/v1/models/a", Scope.MANAGE),
        ("DELETE", "/v1/responses/a", Scope.INFER),
        ("POST", "/api/chat", Scope.INFER),
        ("POST", "/api/chat/", Scope.INFER),
        ("GET", "/api/ps", Scope.INFER),
        ("GET", "/api/status", Scope.INFER),
        ("POST", "/upstream/qwen/completion", Scope.INFER),
        ("POST", "/api/pull", Scope.MANAGE),
        ("DELETE", "/api/delete", Scope.MANAGE),
        ("POST", "/api/delete/", Scope.MANAGE),
        ("HEAD", "/api/blobs/sha256:0", Scope.MANAGE),
        ("GET", "/metrics", Scope.MANAGE),
        ("GET", "/nowhere", Scope.ADMIN),
        ("GET", "/health/", Scope.ADMIN),
        ("GET", "/v1", Scope.ADMIN),
        ("POST", "/API/CHAT", Scope.ADMIN),
        ("POST", "/api/chat/../delete", Scope.ADMIN),
    ],
)
def test_what_a_request_needs(method: str, path: str, scope: Scope) -> None:
    assert scope_of(method, path) is scope


@pytest.mark.parametrize(
    ("method", "path", "manages"),
    [
        ("POST", "/api/pull", True),
        ("POST", "/api/pull/", True),
        ("POST", "/api/push", True),
        ("POST", "/api/create", True),
        ("POST", "/api/copy", True),
        ("DELETE", "/api/delete", True),
        ("POST", "/api/blobs/sha256:0", True),
        ("PUT", "/api/blobs/sha256:0", True),
        ("HEAD", "/api/blobs/sha256:0", False),
        ("DELETE", "/v1/models/a", True),
        ("GET", "/metrics", False),
        ("POST", "/api/chat", False),
        ("GET", "/", False),
    ],
)
def test_what_server_manage_may_close(method: str, path: str, manages: bool) -> None:
    assert is_management(method, path) is manages
