import pytest

from proxy.admission.access import Access, Admitted, Answered, HostRefused, OriginRefused


def access(*origins: str, checks_host: bool = True) -> Access:
    return Access(
        origins=origins,
        checks_host=checks_host,
        own_names=("workshop",),
        own_addresses=("203.0.113.7",),
    )


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost", "http://localhost:3000", "https://127.0.0.1:8080", "http://0.0.0.0",
        "app://obsidian.md", "tauri://localhost", "vscode-webview://abc", "file://x",
    ],
)  # fmt: skip
def test_local_origins_are_let_in_and_named_in_the_reply(origin: str) -> None:
    verdict = access().judge("GET", origin=origin, host="127.0.0.1:11434")

    assert isinstance(verdict, Admitted)
    assert (b"access-control-allow-origin", origin.encode()) in verdict.headers
    assert (b"vary", b"Origin") in verdict.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example", "null", "chrome-extension://abc", "http://localhost.evil.example",
        "http://localhostx:1", "https://evil.example/http://localhost",
        "http://localhost:80.evil.example", "http://127.0.0.1:80@evil.example",
    ],
)  # fmt: skip
def test_other_origins_are_refused(origin: str) -> None:
    with pytest.raises(OriginRefused):
        access().judge("GET", origin=origin, host="127.0.0.1")


def test_a_page_of_the_same_host_is_no_cross_origin_request() -> None:
    verdict = access().judge("GET", origin="http://192.168.1.5:11434", host="192.168.1.5:11434")

    assert verdict == Admitted()


@pytest.mark.parametrize(
    ("told", "origin"),
    [
        ("https://chat.example", "https://chat.example"),
        ("https://*.lan", "https://a.b.lan"),
        ("http://chat.lan:*", "http://chat.lan:8080"),
    ],
    ids=["as written", "with a star", "on any port"],
)
def test_origins_of_the_operator_are_let_in(told: str, origin: str) -> None:
    assert isinstance(access(told).judge("GET", origin=origin, host="127.0.0.1"), Admitted)


def test_a_star_lets_every_origin_in() -> None:
    verdict = access("*").judge("GET", origin="https://any.example", host="127.0.0.1")

    assert verdict == Admitted(((b"access-control-allow-origin", b"*"),))


def test_a_preflight_is_answered_with_what_may_be_sent() -> None:
    verdict = access().judge("OPTIONS", origin="http://localhost:3000", host="evil.example")

    assert isinstance(verdict, Answered)
    assert verdict.status == 204
    headers = dict(verdict.headers)
    assert b"POST" in headers[b"access-control-allow-methods"]
    assert b"Authorization" in headers[b"access-control-allow-headers"]
    assert headers[b"access-control-max-age"] == b"43200"


@pytest.mark.parametrize(
    "host",
    [
        "", "localhost", "localhost:11434", "LOCALHOST", "127.0.0.1:11434", "[::1]:11434", "::1",
        "192.168.1.5:11434", "10.0.0.1", "0.0.0.0", "203.0.113.7:1", "workshop", "Workshop:11434",
        "box.local", "a.localhost", "x.internal:80",
    ],
)  # fmt: skip
def test_hosts_that_can_only_be_this_machine_are_let_in(host: str) -> None:
    assert access().judge("GET", origin="", host=host) == Admitted()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:11434", "8.8.8.8", "localhost.evil.example", "1.2.3.4.5",
        "127.0.0.1.evil.example", "[2606:4700::1111]:80", "local",
    ],
)  # fmt: skip
def test_hosts_that_may_be_rebound_are_refused(host: str) -> None:
    with pytest.raises(HostRefused):
        access().judge("GET", origin="", host=host)


def test_the_host_is_not_looked_at_when_listening_elsewhere() -> None:
    assert access(checks_host=False).judge("GET", origin="", host="llm.example") == Admitted()


def test_options_of_a_known_name_without_an_origin_is_answered() -> None:
    assert access().judge("OPTIONS", origin="", host="localhost") == Answered(204)
