import pytest

from proxy.admission.keys import PREFIX, ApiKey, KeyRing, Scope, digest_of, token_of

CHANCE = bytes(range(36))
KEY_ID, TOKEN = token_of(CHANCE)
NOW = 1_800_000_000.0


def key(token: str = TOKEN, *, key_id: str = KEY_ID, expires_at: float | None = None) -> ApiKey:
    return ApiKey(key_id, "laptop", Scope.INFER, digest_of(token), NOW - 60, expires_at)


def test_a_token_tells_its_id_and_looks_like_a_key_to_clients_that_want_sk() -> None:
    assert TOKEN.startswith(f"{PREFIX}-{KEY_ID}-")
    assert CHANCE[:4].hex() == KEY_ID
    assert len(TOKEN.rpartition("-")[0]) > 0
    assert token_of(bytes(36)) != token_of(CHANCE)


def test_nothing_of_a_token_is_kept_but_its_hash() -> None:
    assert TOKEN.removeprefix(f"{PREFIX}-{KEY_ID}-") not in repr(key())


def test_a_token_opens_for_its_key() -> None:
    held = key()

    assert KeyRing([held]).holder(TOKEN, now=NOW) == held


@pytest.mark.parametrize(
    "token",
    [
        "",
        "ollama",
        "sk-no-key-required",
        f"{PREFIX}-{KEY_ID}-",
        TOKEN[:-1],
        TOKEN + "A",
        TOKEN.upper(),
        TOKEN[:-1] + ("A" if TOKEN[-1] != "A" else "B"),
        " " + TOKEN,
        TOKEN + "\n",
        "x" * 100_000,
        "\udcff" + TOKEN[1:],
        token_of(bytes(36))[1],
        key().sha256.hex(),
    ],
    ids=lambda token: repr(token[:24]),
)
def test_what_is_not_the_token_opens_nothing(token: str) -> None:
    assert KeyRing([key()]).holder(token, now=NOW) is None


def test_another_secret_under_the_same_id_opens_nothing() -> None:
    _, forged = token_of(CHANCE[:4] + bytes(32))

    assert KeyRing([key()]).holder(forged, now=NOW) is None


@pytest.mark.parametrize(("left_s", "opens"), [(1.0, True), (0.0, False), (-1.0, False)])
def test_a_key_opens_until_it_expires(left_s: float, opens: bool) -> None:
    ring = KeyRing([key(expires_at=NOW + left_s)])

    assert (ring.holder(TOKEN, now=NOW) is not None) is opens


def test_each_scope_holds_those_before_it() -> None:
    assert Scope.INFER < Scope.MANAGE < Scope.ADMIN
