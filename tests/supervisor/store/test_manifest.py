"""supervisor.store.manifest: manifests read and written."""

import json

import pytest

from supervisor.store.digests import BadDigest, Digest, parse_digest
from supervisor.store.manifest import (
    CONFIG_TYPE,
    MODEL,
    BadManifest,
    Layer,
    Manifest,
    read_manifest,
    written,
)

HEX = "ab" * 32
MANIFEST = Manifest(
    Layer(CONFIG_TYPE, Digest(HEX), 7), (Layer(MODEL, Digest("cd" * 32), 1 << 40, "base:latest"),)
)


def test_a_manifest_reads_back_as_it_was_written() -> None:
    assert read_manifest(written(MANIFEST)) == MANIFEST


def test_a_written_manifest_has_what_ollama_reads() -> None:
    told = json.loads(written(MANIFEST))

    assert told["schemaVersion"] == 2
    assert told["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert told["config"]["digest"] == f"sha256:{HEX}"
    assert told["layers"][0]["from"] == "base:latest"
    assert "from" not in told["config"]


def _told(**changed: object) -> bytes:
    layer = {"mediaType": MODEL, "digest": f"sha256:{HEX}", "size": 7, **changed}
    return json.dumps({"config": layer, "layers": [layer]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"\xff", b'{"config":null}', b"[" * 100_000,
        _told(digest="sha256:../../etc/passwd"), _told(digest="md5:00"), _told(size=-1),
        _told(size="7"), b" " * (1 << 20) + _told(),
        json.dumps({"config": json.loads(_told())["config"],
                    "layers": json.loads(_told())["layers"] * 1025}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_told_so(data: bytes) -> None:
    with pytest.raises(BadManifest):
        read_manifest(data)


@pytest.mark.parametrize("text", [f"sha256:{HEX}", f"sha256-{HEX}", f"sha256:{HEX.upper()}"])
def test_a_digest_is_read_with_a_colon_or_a_dash(text: str) -> None:
    assert parse_digest(text) == Digest(HEX)


@pytest.mark.parametrize(
    "text",
    ["", HEX, f"sha256:{HEX}0", f"sha256:{HEX[1:]}", f"sha256:{HEX}\n", "sha256:" + "g" * 64],
)
def test_what_is_no_digest_is_told_so(text: str) -> None:
    with pytest.raises(BadDigest):
        parse_digest(text)
