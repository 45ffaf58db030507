"""POST /api/pull against a registry of the loopback, with and without its faults."""

import asyncio
import hashlib
import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from proxy.admission.gate import OPEN_GATE, Management
from supervisor.store.sources import Pace
from tests.fakes.gguf_writer import gguf, put
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.ollama_store import as_it_lies
from tests.fakes.registry import FakeRegistry, Faults, registry
from tests.fakes.serving import SETTINGS, serving

HASTY = Pace(connections=4, part_bytes=64 << 10, stall_s=1.0, head_s=1.0, tries=5, pause_s=0.01)
IMPATIENT = replace(HASTY, stall_s=0.3, head_s=0.4, tries=2)
LARGE = gguf() + random.Random(7).randbytes(1_000_000)
PIECES = -(-len(LARGE) // HASTY.part_bytes)


@dataclass(frozen=True, slots=True)
class Puller:
    """A daemon's door, a registry, and what is pulled from one to the other."""

    client: httpx.AsyncClient
    registry: FakeRegistry
    fleet: ShelfFleet

    async def pull(self, model: str = "tiny:latest", **more: Any) -> list[dict[str, Any]]:
        """The lines of a pull."""
        told = {"model": self.registry.name(model), "insecure": True, **more}
        reply = await self.client.post("/api/pull", json=told)
        assert reply.status_code == 200, reply.text
        return [json.loads(line) for line in reply.text.splitlines()]

    def stored(self) -> dict[str, bytes]:
        """Every file of the store."""
        return as_it_lies(self.fleet.own)

    @property
    def blobs(self) -> set[bytes]:
        """What all blobs hold; there is nothing else beside them."""
        files = {k: v for k, v in self.stored().items() if k.startswith("blobs/")}
        assert all(
            name == f"blobs/sha256-{hashlib.sha256(data).hexdigest()}"
            for name, data in files.items()
        ), sorted(files)
        return set(files.values())


@asynccontextmanager
async def puller(
    folder: Path, faults: Faults | None = None, *, pace: Pace = HASTY
) -> AsyncIterator[Puller]:
    fleet = ShelfFleet(folder, pace=pace)
    async with registry(faults) as source, serving(fleet, store=fleet.store) as at:
        yield Puller(at.client, source, fleet)


async def test_a_pulled_model_is_on_offer_when_its_last_line_is_read(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        manifest = at.registry.add(weights=LARGE)
        lines = await at.pull()
        name = at.registry.name()
        shown = (await at.client.post("/api/show", json={"model": name})).json()
        tags = (await at.client.get("/api/tags")).json()["models"]

    assert lines[0] == {"status": "pulling manifest"}
    assert [line["status"] for line in lines[-3:]] == [
        "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    assert shown["system"] == "Be brief."
    assert [(tag["name"], tag["digest"]) for tag in tags] == [
        (name, hashlib.sha256(manifest).hexdigest())
    ]
    assert at.blobs == set(at.registry.blobs.values())
    assert at.fleet.events == [("model.pulled", name)]


async def test_progress_is_told_as_clients_draw_it(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(pace_s=0.05)) as at:
        at.registry.add(weights=LARGE)
        lines = await at.pull()

    digest = f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
    drawn = [line for line in lines if line.get("digest") == digest]
    assert {line["status"] for line in drawn} == {f"pulling {digest[7:19]}"}
    assert {line["total"] for line in drawn} == {len(LARGE)}
    completed = [line.get("completed", 0) for line in drawn]
    assert completed == sorted(completed)
    assert len(completed) > 2
    assert completed[-1] == len(LARGE)


async def test_without_a_stream_the_last_line_is_the_whole_reply(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.registry.add()

        assert await at.pull(stream=False) == [{"status": "success"}]


async def test_a_large_file_comes_in_parts_over_several_connections(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(pace_s=0.01)) as at:
        at.registry.add(weights=LARGE)
        await at.pull()

    digest = hashlib.sha256(LARGE).hexdigest()
    ranges = sorted(one.range or (-1, -1) for one in at.registry.asked_for(digest))
    assert len(ranges) == PIECES
    assert ranges[0][0] == 0
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    assert ranges[-1][1] == len(LARGE) - 1
    assert 2 <= at.registry.most_connections <= HASTY.connections + 1


async def test_what_is_there_already_is_not_fetched_again(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.registry.add("tiny:1", weights=LARGE)
        at.registry.add("tiny:2", weights=LARGE, system="Be long.")
        await at.pull("tiny:1")
        lines = await at.pull("tiny:2")

    digest = f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
    assert at.registry.served_bytes[digest] == len(LARGE)
    (line,) = (line for line in lines if line.get("digest") == digest)
    assert line["completed"] == line["total"] == len(LARGE)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(cut_after=32 << 10, cuts=5),
        Faults(cut_after=0, cuts=2),
        Faults(drip=True, cuts=2),
        Faults(silent=True, cuts=2),
        Faults(trickles=True, cuts=2),
        Faults(status=503, cuts=2),
        Faults(status=429, cuts=2),
        Faults(needs_token=True),
        Faults(moves=True),
        Faults(moves=True, needs_token=True),
        Faults(ignores_ranges=True),
        Faults(ignores_ranges=True, cut_after=300_000, cuts=2),
        Faults(refuses_ranges=1),
    ],
    ids=lambda faults: ",".join(
        f"{k}={v}" for k, v in vars(faults).items() if v != vars(Faults())[k]
    ),
)  # fmt: skip
async def test_a_pull_survives_what_may_pass(tmp_path: Path, faults: Faults) -> None:
    async with puller(tmp_path, faults) as at:
        at.registry.add(weights=LARGE)
        lines = await at.pull()

    assert lines[-1] == {"status": "success"}, lines
    assert at.blobs == set(at.registry.blobs.values())


async def test_the_bytes_that_came_before_a_cut_are_not_fetched_again(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(cut_after=32 << 10, cuts=5)) as at:
        at.registry.add(weights=LARGE)
        await at.pull()

    digest = f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
    assert at.registry.served_bytes[digest] == len(LARGE)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(needs_token=True, token="caf\u00e9"), "a token that no header can hold"),
        (Faults(needs_token=True, token="a\r\nb: c"), "a token that no header can hold"),
        (Faults(needs_token=True, realm="http://[bad"), "no address to get a token at"),
        (Faults(needs_token=True, realm="http://127.0.0.1:port/t"), "Invalid port"),
    ],
    ids=["letters", "line ends", "an address of no host", "an address of no port"],
)
async def test_a_registry_that_asks_for_nonsense_is_told_of(
    tmp_path: Path, faults: Faults, says: str
) -> None:
    async with puller(tmp_path, faults) as at:
        at.registry.add()
        told = {"model": at.registry.name(), "insecure": True, "stream": False}
        reply = await at.client.post("/api/pull", json=told)

    assert says in reply.json()["error"], reply.text
    assert not at.stored()


async def test_a_token_is_not_told_to_the_host_that_a_redirect_leads_to(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(moves=True, needs_token=True)) as at:
        at.registry.add(weights=LARGE)
        await at.pull()

    elsewhere = at.registry.asked_for("/elsewhere/")
    assert elsewhere
    assert not [one for one in elsewhere if "authorization" in one.headers]
    (token, *_) = at.registry.asked_for("/token")
    assert token.path == "/token?service=s&scope=a&scope=b"


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(wrong_bytes=True), "digest mismatch"),
        (Faults(wrong_total=True), "bytes instead of"),
        (Faults(status=403, cuts=99), "HTTP 403: not now"),
        (Faults(status=503, cuts=99), "HTTP 503: not now"),
        (Faults(cut_after=0, cuts=999), "cannot be reached"),
        (Faults(silent=True, cuts=999), "cannot be reached"),
        (Faults(trickles=True, cuts=999), "no answer within 0.4 s"),
        (Faults(piece_bytes=1, pace_s=0.05), "next to nothing"),
        (Faults(refuses_ranges=99), "does not send the parts"),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)  # fmt: skip
async def test_a_pull_that_fails_says_why_and_leaves_nothing_that_looks_finished(
    tmp_path: Path, faults: Faults, says: str
) -> None:
    async with puller(tmp_path, faults, pace=IMPATIENT) as at:
        at.registry.add(weights=LARGE)
        streamed = await at.pull()
        told = {"model": at.registry.name(), "insecure": True, "stream": False}
        whole = await at.client.post("/api/pull", json=told)
        tags = (await at.client.get("/api/tags")).json()["models"]

    assert says in streamed[-1]["error"]
    assert "status" not in streamed[-1]
    assert whole.status_code in (400, 500)
    assert says in whole.json()["error"]
    assert tags == []
    blobs = [name for name in at.stored() if name.startswith("blobs/") and "partial" not in name]
    assert not [n for n in blobs if n.removeprefix("blobs/sha256-") == LARGE_HEX]
    assert not [name for name in at.stored() if name.startswith("manifests/")]
    assert at.fleet.events == [("pull.failed", at.registry.name())] * 2


LARGE_HEX = hashlib.sha256(LARGE).hexdigest()


async def test_a_file_of_wrong_bytes_is_not_gone_on_with(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(wrong_bytes=True)) as at:
        at.registry.add(weights=LARGE)
        await at.pull()
        at.registry.faults.wrong_bytes = False
        lines = await at.pull()

    assert lines[-1] == {"status": "success"}
    assert at.blobs == set(at.registry.blobs.values())


async def test_a_pull_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    slow = replace(HASTY, connections=1)
    async with puller(tmp_path, Faults(pace_s=0.005), pace=slow) as at:
        at.registry.add(weights=LARGE)
        told = {"model": at.registry.name(), "insecure": True}
        async with at.client.stream("POST", "/api/pull", json=told) as reply:
            async for line in reply.aiter_lines():
                if json.loads(line).get("completed", 0) > len(LARGE) // 2:
                    break
        before = at.registry.served_bytes[f"sha256:{LARGE_HEX}"]
        lines = await at.pull()

    assert before < len(LARGE)
    assert lines[-1] == {"status": "success"}
    again = at.registry.served_bytes[f"sha256:{LARGE_HEX}"] - before
    assert again < len(LARGE) * 3 // 4
    assert at.blobs == set(at.registry.blobs.values())


async def test_who_asks_for_the_same_shares_one_download(tmp_path: Path) -> None:
    async with puller(tmp_path, Faults(pace_s=0.01)) as at:
        at.registry.add(weights=LARGE)
        pulls = await asyncio.gather(*(at.pull() for _ in range(5)))

    assert [lines[-1] for lines in pulls] == [{"status": "success"}] * 5
    assert at.registry.served_bytes[f"sha256:{LARGE_HEX}"] == len(LARGE)


async def test_a_download_goes_on_for_who_still_waits_and_ends_with_the_last(
    tmp_path: Path,
) -> None:
    async with puller(tmp_path, Faults(pace_s=0.02)) as at:
        at.registry.add(weights=LARGE)
        first = asyncio.create_task(at.pull())
        second = asyncio.create_task(at.pull())
        async with asyncio.timeout(10):
            while not at.registry.served_bytes[f"sha256:{LARGE_HEX}"]:
                await asyncio.sleep(0.01)
        first.cancel()
        lines = await second
        assert lines[-1] == {"status": "success"}

        at.registry.add("other:1", weights=LARGE + b"more")
        third = asyncio.create_task(at.pull("other:1"))
        digest = f"sha256:{hashlib.sha256(LARGE + b'more').hexdigest()}"
        async with asyncio.timeout(10):
            while not at.registry.served_bytes[digest]:
                await asyncio.sleep(0.01)
        third.cancel()
        async with asyncio.timeout(10):
            while at.registry.open_connections > 2:  # kept alive, for manifests
                await asyncio.sleep(0.01)
        sent = at.registry.served_bytes[digest]
        await asyncio.sleep(0.2)

    assert at.registry.served_bytes[digest] == sent < len(LARGE)


async def test_an_unknown_model_is_told_as_ollama_does(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        lines = await at.pull("none:latest")
        told = {"model": at.registry.name("none:1"), "insecure": True, "stream": False}
        whole = await at.client.post("/api/pull", json=told)

    says = "pull model manifest: file does not exist"
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[1]["error"] == says
    assert lines[1]["remedy"].startswith(f"127.0.0.1:{at.registry.port} has no")
    assert (whole.status_code, whole.json()["error"]) == (500, says)


@pytest.mark.parametrize(
    ("told", "status", "says"),
    [
        ({}, 400, "model is required"),
        ({"model": "a b"}, 400, "invalid model name"),
        ({"model": "../../x"}, 400, "invalid model name"),
        ({"model": "127.0.0.1:1:2/library/tiny"}, 400, "invalid model name"),
        ({"model": "http://127.0.0.1:9/a/b"}, 500,
         "insecure protocol http"),
        ({"model": "gpt-oss:120b-cloud"}, 403,
         "ollama cloud is disabled: remote model is unavailable"),
        ({"model": "m", "stream": "yes"}, 400,
         "json: cannot unmarshal string into Go struct field PullRequest.stream of type bool"),
    ],
)  # fmt: skip
async def test_a_pull_is_refused_in_ollamas_words(
    tmp_path: Path, told: dict[str, object], status: int, says: str
) -> None:
    async with puller(tmp_path) as at:
        reply = await at.client.post("/api/pull", json=told)

    assert (reply.status_code, reply.json()["error"]) == (status, says)


async def test_a_registry_that_nobody_listens_for_is_named(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        told = {"model": "127.0.0.1:9/library/none", "insecure": True}
        reply = await at.client.post("/api/pull", json=told)

    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[-1]["error"].startswith("127.0.0.1 cannot be reached")


@pytest.mark.parametrize(
    "manifest",
    [
        b"<html>not here</html>",
        b'{"config":{"mediaType":"c","digest":"sha256:../../etc/passwd","size":1},"layers":[]}',
        b"[" * 100_000,
        b" " * (2 << 20),
    ],
)
async def test_a_manifest_that_is_none_changes_nothing(tmp_path: Path, manifest: bytes) -> None:
    async with puller(tmp_path) as at:
        at.registry.manifests["/v2/library/tiny/manifests/latest"] = manifest
        lines = await at.pull()

    assert "error" in lines[-1]
    assert at.stored() == {}


async def test_more_than_the_disk_has_is_refused_before_a_byte_comes(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        told = json.loads(at.registry.add(weights=LARGE))
        told["layers"][0]["size"] = 1 << 60
        path = "/v2/library/tiny/manifests/latest"
        at.registry.manifests[path] = json.dumps(told).encode()
        lines = await at.pull()

    assert "are needed in" in lines[-1]["error"]
    assert not at.registry.served_bytes
    assert at.stored() == {}


async def test_a_name_that_a_file_has_is_not_pulled(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        put(at.fleet.dir, "tiny.gguf")
        await at.fleet.catalogue.scan()
        reply = await at.client.post("/api/pull", json={"model": "tiny", "stream": False})

    assert reply.status_code == 409
    assert str(at.fleet.dir / "tiny.gguf") in reply.json()["error"]


async def test_a_folder_of_blobs_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.registry.add(weights=LARGE)
        await at.pull()
        shutil.rmtree(at.fleet.own / "blobs")
        lines = await at.pull()
        shutil.rmtree(at.fleet.own / "blobs")
        data = b"uploaded"
        digest = hashlib.sha256(data).hexdigest()
        kept = await at.client.post(f"/api/blobs/sha256:{digest}", content=data)

    assert lines[-1] == {"status": "success"}
    assert kept.status_code == 201
    assert at.stored()[f"blobs/sha256-{digest}"] == data


async def test_an_update_removes_what_only_the_old_model_needed(tmp_path: Path) -> None:
    async with puller(tmp_path) as at:
        at.registry.add(system="old")
        await at.pull()
        at.registry.blobs.clear()
        at.registry.add(system="new")
        await at.pull()

    assert at.blobs == set(at.registry.blobs.values())
    assert b"old" not in at.blobs


async def test_where_management_is_off_nothing_is_asked_of_any_registry(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    closed = replace(SETTINGS, gate=replace(OPEN_GATE, management=Management.OFF))
    async with registry() as source, serving(fleet, store=fleet.store, settings=closed) as at:
        told = {"model": source.name(), "insecure": True}
        reply = await at.client.post("/api/pull", json=told)

    assert reply.status_code == 403
    assert source.asked == []


async def test_a_pull_goes_through_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registry() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with puller(tmp_path) as at:
            told = {"model": "http://registry.example/library/none", "insecure": True}
            reply = await at.client.post("/api/pull", json=told)

    assert "file does not exist" in reply.text
    assert [one.path for one in proxy.asked] == [
        "http://registry.example/v2/library/none/manifests/latest"
    ]


async def test_a_base_that_is_not_there_is_pulled_before_a_model_is_made_of_it(
    tmp_path: Path,
) -> None:
    async with puller(tmp_path) as at:
        told = {"model": "new", "from": f"{at.registry.name('none:1')}", "stream": False}
        reply = await at.client.post("/api/create", json=told)

    assert reply.status_code == 500
    assert "127.0.0.1" in reply.json()["error"]
