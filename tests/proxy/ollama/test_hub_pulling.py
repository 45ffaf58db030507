"""POST /api/pull of a hub's repositories, against one of the loopback, with and without faults."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor.models.places import Place, Program
from supervisor.store.digests import Digest
from tests.fakes.gguf_writer import gguf, put, split_gguf
from tests.fakes.hub import REPOSITORY, FakeHub, hub
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.ollama_store import as_it_lies
from tests.fakes.registry import TOKEN, Faults
from tests.fakes.serving import serving
from tests.proxy.ollama.test_pulling import HASTY, IMPATIENT

LARGE = gguf() + random.Random(3).randbytes(600_000)
NAME = f"hf.co/{REPOSITORY}"
Q4, Q8 = "Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf"


@dataclass(frozen=True, slots=True)
class Puller:
    """A daemon's door, a hub, and what is pulled from one to the other."""

    client: httpx.AsyncClient
    hub: FakeHub
    fleet: ShelfFleet

    async def pull(self, model: str = NAME) -> list[dict[str, Any]]:
        """The lines of a pull."""
        reply = await self.client.post("/api/pull", json={"model": model})
        assert reply.status_code == 200, reply.text
        return [json.loads(line) for line in reply.text.splitlines()]

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """What another route answers."""
        told: dict[str, Any] = (await self.client.post(path, json=body)).json()
        return told

    async def tags(self) -> list[str]:
        """The names on offer."""
        return [m["name"] for m in (await self.client.get("/api/tags")).json()["models"]]


@asynccontextmanager
async def puller(
    folder: Path, faults: Faults | None = None, *, token: str = "", pace: Any = HASTY
) -> AsyncIterator[Puller]:
    async with hub(faults) as source:
        source.put(Q4, LARGE)
        source.put(Q8, LARGE + b"better")
        fleet = ShelfFleet(folder, pace=pace, hub=source.at(token))
        async with serving(fleet, store=fleet.store) as at:
            yield Puller(at.client, source, fleet)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_a_repositorys_file_is_pulled_by_its_quantisation_and_is_on_offer(
    tmp_path: Path,
) -> None:
    async with puller(tmp_path) as at:
        lines = await at.pull(f"{NAME}:q8_0")
        shown = await at.post("/api/show", model=f"{NAME}:Q8_0")
        tags = await at.tags()

    first, *drawn, verifying, writing, success = lines
    assert first == {"status": "pulling manifest"}
    assert [line["status"] for line in (verifying, writing, success)] == [
        "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    size, wanted = len(LARGE) + 6, digest(LARGE + b"better")
    assert {(line["digest"], line["total"]) for line in drawn} == {(wanted, size)}
    assert drawn[-1]["completed"] == size
    assert shown["details"]["format"] == "gguf"
    assert tags == [f"{NAME}:q8_0"]
    assert at.fleet.events == [("model.pulled", f"{NAME}:q8_0")]


@pytest.mark.parametrize("host", ["hf.co", "huggingface.co", "HF.co"])
async def test_without_a_tag_the_usual_quantisation_is_pulled(tmp_path: Path, host: str) -> None:
    async with puller(tmp_path) as at:
        await at.pull(f"{host}/{REPOSITORY}")
        tags = await at.tags()

    assert tags == [f"{host}/{REPOSITORY}:latest"]
    assert set(at.hub.served_bytes) == {hashlib.sha256(LARGE).hexdigest()}


async def test_a_projector_beside_it_and_the_repositorys_texts_come_along(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        projector = gguf("clip", pairs={"clip.has_vision_encoder": True})
        at.hub.put("mmproj-F16.gguf", projector)
        at.hub.put("system", b"Be brief.", in_git=True)
        at.hub.put("params", b'{"stop": ["<end>"]}', in_git=True)
        at.hub.put("README.md", b"# Tiny", in_git=True)
        lines = await at.pull()
        shown = await at.post("/api/show", model=NAME)
        served = at.fleet.resolve(NAME)

    assert lines[-1] == {"status": "success"}
    assert served is not None
    assert served.settings.mmproj_path is not None
    assert served.projector is not None
    assert shown["system"] == "Be brief."
    assert shown["parameters"].split() == ["stop", '"<end>"']
    assert b"# Tiny" not in as_it_lies(at.fleet.own).values()


async def test_a_split_file_is_one_model_that_can_be_shown_copied_and_deleted(
    tmp_path: Path,
) -> None:
    async with puller(tmp_path) as at:
        for number, part in enumerate(split_gguf(3), start=1):
            at.hub.put(f"F16/Tiny-F16-{number:05}-of-00003.gguf", part)
        lines = await at.pull(f"{NAME}:F16")
        served = at.fleet.resolve(f"{NAME}:F16")
        told = {"model": "mine", "from": f"{NAME}:F16", "system": "Hi.", "stream": False}
        await at.post("/api/create", **told)
        await at.client.request("DELETE", "/api/delete", json={"model": f"{NAME}:F16"})
        mine = at.fleet.resolve("mine")
        assert mine is not None
        with_copy = as_it_lies(at.fleet.own)
        await at.client.request("DELETE", "/api/delete", json={"model": "mine"})

    assert lines[-1] == {"status": "success"}
    assert served is not None
    assert served.info.n_layer == 3
    assert served.path.endswith("model-00001-of-00003.gguf")
    assert mine.path == served.path
    assert set(split_gguf(3)) <= set(with_copy.values())
    assert as_it_lies(at.fleet.own) == {}
    assert not any((at.fleet.own / "splits").iterdir())


async def test_links_of_a_split_model_that_were_lost_are_made_again_at_the_start(
    tmp_path: Path,
) -> None:
    async with puller(tmp_path) as at:
        for number, part in enumerate(split_gguf(2), start=1):
            at.hub.put(f"Tiny-F16-{number:05}-of-00002.gguf", part)
        await at.pull(f"{NAME}:F16")
    for path in (at.fleet.own / "splits").rglob("*.gguf"):
        path.unlink()
    fleet = ShelfFleet(tmp_path)
    async with serving(fleet, store=fleet.store):
        await fleet.catalogue.look_again()
        await fleet.store.has_blob(Digest(64 * "0"))  # after all that its start does
        await fleet.catalogue.look_again()

    assert fleet.resolve(f"{NAME}:F16") is not None


@pytest.mark.parametrize(
    "faults",
    [
        Faults(cut_after=32 << 10, cuts=5),
        Faults(drip=True, cuts=2),
        Faults(silent=True, cuts=2),
        Faults(trickles=True, cuts=2),
        Faults(status=503, cuts=2),
        Faults(moves=True),
        Faults(ignores_ranges=True, cut_after=300_000, cuts=2),
        Faults(refuses_ranges=1),
    ],
    ids=lambda faults: ",".join(
        f"{k}={v}" for k, v in vars(faults).items() if v != vars(Faults())[k]
    ),
)
async def test_a_pull_survives_what_may_pass(tmp_path: Path, faults: Faults) -> None:
    async with puller(tmp_path, faults) as at:
        lines = await at.pull()

    assert lines[-1] == {"status": "success"}, lines
    assert LARGE in as_it_lies(at.fleet.own).values()


@pytest.mark.parametrize(("has_list", "has_sizes"), [(True, False), (False, False)])
async def test_a_hub_that_tells_sizes_in_its_trees_alone_is_asked_page_by_page(
    tmp_path: Path, has_list: bool, has_sizes: bool
) -> None:
    async with puller(tmp_path) as at:
        at.hub.has_list, at.hub.has_sizes = has_list, has_sizes
        at.hub.put("Tiny-Q6_K.gguf", LARGE + b"!")
        lines = await at.pull(f"{NAME}:Q6_K")

    assert lines[-1] == {"status": "success"}, lines
    assert len(at.hub.asked_for("/tree/")) == 2


async def test_a_token_goes_to_the_hub_and_not_where_it_leads_to(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(moves=True), token=TOKEN) as at:
        at.hub.is_private = True
        lines = await at.pull()

    elsewhere = at.hub.asked_for("/elsewhere/")
    assert lines[-1] == {"status": "success"}
    assert elsewhere
    assert not [one for one in elsewhere if "authorization" in one.headers]


@pytest.mark.parametrize(
    ("gate", "token", "says"),
    [
        ("is_gated", "", "accept its terms at https://"),
        ("is_gated", "another", "with the account of HF_TOKEN"),
        ("is_private", "", "needs HF_TOKEN in the daemon's environment"),
        ("is_private", "another", "does not take the daemon's HF_TOKEN"),
    ],
)
async def test_what_is_not_for_everybody_is_refused_with_what_to_do(
    tmp_path: Path, gate: str, token: str, says: str
) -> None:
    async with puller(tmp_path, token=token) as at:
        setattr(at.hub, gate, True)
        lines = await at.pull()

    assert says in lines[-1]["error"] + lines[-1].get("remedy", "")
    assert "manifests" not in " ".join(as_it_lies(at.fleet.own))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (f"{NAME}:Q2_K", "has no Q2_K; pull one of Q4_K_M, Q8_0"),
        ("hf.co/org/none", "shows no repository org/none: check its name"),
    ],
)
async def test_what_is_not_there_is_told_with_what_is(
    tmp_path: Path, model: str, says: str
) -> None:
    async with puller(tmp_path) as at:
        lines = await at.pull(model)

    assert says in lines[-1]["error"] + lines[-1].get("remedy", "")
    assert at.fleet.events[-1][0] == "pull.failed"


async def test_a_repository_without_a_gguf_file_says_what_to_pull_instead(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.hub.files.clear()
        at.hub.put("model.safetensors", b"x" * 100)
        lines = await at.pull()

    assert "has no GGUF file" in lines[-1]["error"]
    assert "…-GGUF" in lines[-1]["error"]


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(wrong_bytes=True), "digest mismatch"),
        (Faults(status=503, cuts=99), "HTTP 503: not now"),
        (Faults(cut_after=0, cuts=999), "cannot be reached"),
        (Faults(trickles=True, cuts=99), "no answer within 0.4 s"),
        (Faults(piece_bytes=1, pace_s=0.05), "next to nothing"),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)  # fmt: skip
async def test_a_pull_that_fails_says_why_and_leaves_no_model(
    tmp_path: Path, faults: Faults, says: str
) -> None:
    async with puller(tmp_path, faults, pace=IMPATIENT) as at:
        lines = await at.pull()
        tags = await at.tags()

    assert says in lines[-1]["error"]
    assert tags == []
    left = as_it_lies(at.fleet.own)
    assert LARGE not in left.values()
    assert not [name for name in left if name.startswith("manifests/")]


async def test_a_small_file_of_other_bytes_than_git_has_is_refused(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.hub.files.clear()
        at.hub.put(Q4, gguf(), in_git=True)
        whole = await at.pull()
        at.hub.put("tiny-Q5_K_M.gguf", gguf(block=0), in_git=True)
        at.hub.faults.wrong_bytes = True
        lines = await at.pull(f"{NAME}:Q5_K_M")

    assert whole[-1] == {"status": "success"}
    assert "sent other bytes of tiny-Q5_K_M.gguf" in lines[-1]["error"]


async def test_who_asks_for_the_same_shares_one_download(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(pace_s=0.01)) as at:
        pulls = await asyncio.gather(*(at.pull() for _ in range(3)))

    assert [lines[-1] for lines in pulls] == [{"status": "success"}] * 3
    assert at.hub.served_bytes[hashlib.sha256(LARGE).hexdigest()] == len(LARGE)


async def test_a_pull_goes_on_where_one_that_was_left_ended(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(pace_s=0.01)) as at:
        async with at.client.stream("POST", "/api/pull", json={"model": NAME}) as reply:
            async for line in reply.aiter_lines():
                if json.loads(line).get("completed", 0) > len(LARGE) // 2:
                    break
        at.hub.faults.pace_s = 0.0
        before = at.hub.served_bytes[hashlib.sha256(LARGE).hexdigest()]
        lines = await at.pull()

    assert lines[-1] == {"status": "success"}
    again = at.hub.served_bytes[hashlib.sha256(LARGE).hexdigest()] - before
    assert again < len(LARGE) * 3 // 4


async def test_a_model_that_another_program_keeps_is_pulled_all_the_same_and_goes_before_it(
    tmp_path: Path,
) -> None:
    theirs = put(tmp_path / "studio", f"{REPOSITORY}/{Q8}")
    name = f"{NAME}:Q8_0"
    async with hub() as source:
        source.put(Q8, LARGE)
        places = (Place(Program.LM_STUDIO, str(tmp_path / "studio")),)
        fleet = ShelfFleet(tmp_path, pace=HASTY, hub=source.at(), places=places)
        async with serving(fleet, store=fleet.store) as at:
            await fleet.catalogue.look_again()
            served = [fleet.resolve(name)]
            await at.client.post("/api/pull", json={"model": name, "stream": False})
            served.append(fleet.resolve(name))
            first = await at.client.request("DELETE", "/api/delete", json={"model": name})
            served.append(fleet.resolve(name))
            second = await at.client.request("DELETE", "/api/delete", json={"model": name})

    assert [one.store if one else None for one in served] == ["", str(fleet.own), ""]
    assert (first.status_code, second.status_code) == (200, 403)
    assert str(theirs) in second.json()["error"]
    assert theirs.exists()


async def test_more_than_the_disk_has_is_refused_before_a_byte_comes(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.hub.claimed_bytes = 1 << 60
        lines = await at.pull()

    assert "are needed in" in lines[-1]["error"]
    assert not at.hub.served_bytes


async def test_a_file_whose_size_is_none_is_not_begun(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.hub.claimed_bytes = -5
        lines = await at.pull()

    assert f"no size of {Q4}" in lines[-1]["error"]
    assert not at.hub.served_bytes


async def test_what_is_no_model_leaves_none(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.hub.files.clear()
        at.hub.put(Q4, b"not a GGUF file" * 100)
        lines = await at.pull()
        tags = await at.tags()

    assert "is no GGUF model" in lines[-1]["error"]
    assert tags == []
