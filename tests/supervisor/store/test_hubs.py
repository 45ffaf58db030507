"""supervisor.store.hubs: which hub is meant, by the environment and by a name."""

import pytest

from supervisor.store.hubs import ENDPOINT, HUB, Hub, hub_of
from supervisor.store.names import parse_name


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({}, Hub(ENDPOINT, "")),
        ({"HF_TOKEN": " hf_x\n"}, Hub(ENDPOINT, "hf_x")),
        ({"HF_ENDPOINT": "https://mirror.example/"}, Hub("https://mirror.example", "")),
        ({"HF_ENDPOINT": "mirror.example", "HF_TOKEN": "caf\u00e9"}, Hub(ENDPOINT, "")),
    ],
)
def test_the_environment_says_where_it_is_and_who_asks(environ: dict[str, str], hub: Hub) -> None:
    assert hub_of(environ) == hub


@pytest.mark.parametrize(
    ("name", "is_its"),
    [
        ("hf.co/org/repo", True), ("HuggingFace.co/org/repo:Q4_0", True), ("org/repo", False),
        ("127.0.0.1:5000/org/repo", False),
    ],
)  # fmt: skip
def test_names_of_its_hosts_are_its_repositories(name: str, is_its: bool) -> None:
    assert HUB.has(parse_name(name)) is is_its
    assert Hub("http://127.0.0.1:5000").has(parse_name("127.0.0.1:5000/org/repo"))
