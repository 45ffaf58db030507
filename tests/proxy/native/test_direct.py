"""/upstream/{model}/…: which model a path means, and what no path gets."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.model import ModelId, ServedModel
from proxy.native.direct import reads_gzip
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, serving

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
UI = replace(SETTINGS, ui=True)


class Nested(FleetOfOne):
    """Offers two models, of which one's name begins with the other's."""

    def resolve(self, name: str) -> ServedModel | None:
        return next((model for model in self.models() if model.model_id == name), None)

    def models(self) -> Sequence[ServedModel]:
        return tuple(replace(self.model, model_id=ModelId(name)) for name in ("a", "a/v1"))


async def test_the_path_goes_before_the_body(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        told = {**CHAT, "model": "another"}
        chat = await at.client.post("/upstream/tiny/v1/chat/completions", json=told)
        text = await at.client.post("/upstream/tiny/completion", json={"prompt": "a"})
        other = await at.client.post("/upstream/tiny/v1/messages", json=CHAT)
        third = await at.client.post("/upstream/tiny/responses", json={"input": "a"})
        tokens = await at.client.post("/upstream/tiny/tokenize?model=no", json={"content": "a"})

    assert [reply.status_code for reply in (chat, text, other, third, tokens)] == [200] * 5
    assert other.json()["type"] == "message"
    assert chat.json()["object"] == "chat.completion"


async def test_the_longest_name_of_a_model_is_meant(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    fleet = Nested(served_model(path=str(tmp_path / "tiny.gguf")), tmp_path)
    async with serving(fleet) as at:
        one = await at.client.get("/upstream/a/slots")
        other = await at.client.get("/upstream/a/v1/props")
        encoded = await at.client.get("/upstream/a%2Fv1/props")
        await fleet.stop()

    assert [reply.status_code for reply in (one, other, encoded)] == [200] * 3
    assert other.json()["model_path"] == encoded.json()["model_path"] == "a/v1"


async def test_a_path_without_a_model_is_a_404(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        replies = [await at.client.get(f"/upstream/{rest}") for rest in ("", "x", "x/" * 3000)]

    assert [reply.status_code for reply in replies] == [404] * 3
    assert fleet.launches == 0


@pytest.mark.parametrize(
    ("method", "rest", "status"),
    [
        ("POST", "slots/0?action=save", 403),
        ("POST", "slots/0?action=restore", 403),
        ("POST", "slots/0?action=erase", 403),
        ("POST", "models/load", 403),
        ("POST", "models/unload", 403),
        ("GET", "models/sse", 403),
        ("GET", "v1/stream?conv_id=a", 403),
        ("DELETE", "v1/stream?conv_id=a", 403),
        ("POST", "v1/streams/lookup", 403),
        ("POST", "v1/chat/completions/control", 403),
        ("GET", "tools", 403),
        ("GET", "cors-proxy?url=http://x/", 403),
        ("GET", "metrics", 403),
        ("POST", "props", 405),
        ("POST", "lora-adapters", 405),
        ("DELETE", "v1/chat/completions", 405),
        ("POST", "v1/models", 404),
        ("PUT", "index.html", 404),
        ("GET", "..%2f..%2fetc%2fpasswd", 404),
        ("GET", "%2e%2e/x", 404),
        ("GET", "a/%2e%2e/slots/0", 404),
        ("GET", "a%0d%0aX:%20y", 404),
        ("GET", "a%20b", 404),
        ("GET", "a%3Faction=save", 404),
        ("GET", "a%25b", 404),
        ("GET", ".env", 404),
    ],
)
async def test_what_is_dangerous_is_refused_without_a_load(
    tmp_path: Path, method: str, rest: str, status: int
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=UI) as at:
        reply = await at.client.request(method, f"/upstream/tiny/{rest}")

    assert reply.status_code == status
    assert fleet.launches == 0


async def test_the_web_chat_is_off_unless_it_is_wanted(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.get("/upstream/tiny/")

    assert reply.status_code == 404
    assert "set ui = true under [server]" in reply.json()["error"]["message"]
    assert fleet.launches == 0


async def test_a_models_name_alone_leads_to_its_folder(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=UI) as at:
        reply = await at.client.get("/upstream/tiny")

    assert (reply.status_code, reply.headers["location"]) == (308, "./tiny/")


async def test_a_child_lost_meanwhile_is_asked_again(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        before = await at.client.get("/upstream/tiny/health")
        fleet.kill()
        after = await at.client.get("/upstream/tiny/health")

    assert before.json() == after.json() == {"status": "ok"}
    assert fleet.launches == 2


@pytest.mark.parametrize(
    ("accepted", "reads"),
    [
        (b"", False),
        (b"identity", False),
        (b"gzip", True),
        (b"br, GZIP;q=0.5", True),
        (b"gzip; q=0", False),
        (b"gzip;q=0.00", False),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0, *", False),
    ],
)
def test_a_caller_reads_gzip_where_its_accept_encoding_says_so(
    accepted: bytes, reads: bool
) -> None:
    assert reads_gzip(accepted) is reads
