"""Builds stores as Ollama lays them out, byte by byte its own way."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.gguf_writer import gguf

IMAGE = "application/vnd.ollama.image."
LIBRARY = "registry.ollama.ai/library"


@dataclass(frozen=True, slots=True)
class OllamaStore:
    """A store in `folder`."""

    folder: Path

    def blob(self, data: bytes) -> str:
        """Puts a blob; its digest."""
        name = hashlib.sha256(data).hexdigest()
        path = self.folder / "blobs" / f"sha256-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return f"sha256:{name}"

    def layer(self, kind: str, data: bytes) -> dict[str, object]:
        """Puts a blob; the layer that it is."""
        return {"mediaType": IMAGE + kind, "digest": self.blob(data), "size": len(data)}

    def add(
        self,
        path: str = f"{LIBRARY}/tiny/latest",
        *,
        model: bytes | None = None,
        layers: Sequence[tuple[str, bytes]] = (),
        params: Mapping[str, object] | None = None,
    ) -> Path:
        """A model of that path below `manifests`, and what goes with it; its manifest's path."""
        told = [("model", gguf() if model is None else model), *layers]
        if params is not None:
            told.append(("params", json.dumps(params).encode()))
        return self.add_manifest(path, [self.layer(kind, data) for kind, data in told])

    def add_manifest(self, path: str, layers: Sequence[Mapping[str, object]]) -> Path:
        """A manifest of those layers."""
        config = json.dumps({"model_format": "gguf", "model_family": "llama"}).encode()
        told = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": self.blob(config),
                "size": len(config),
            },
            "layers": list(layers),
        }
        at = self.folder / "manifests" / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(json.dumps(told))
        return at


def as_it_lies(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
