"""`python -m bench.planner.measure`: measured rows of random configurations, for bench.planner.

Each launches the real engine, one at a time, and is ended as soon as its buffers are reserved: no
token is decoded, so an engine that was built for another processor can be measured, too.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from bench.planner.engine import READY, launch, live_engine, with_twins
from bench.planner.launches import random_flags
from bench.planner.shapes import ARCHITECTURES, random_model
from planners.backends import Engine
from planners.ggml.layers import is_expert
from planners.ggml.types import TENSOR_TYPES
from planners.graph.buffers import BufferKind, parse_buffer_line
from tests.fakes.rpc_servers import rpc_server
from tests.fakes.tiny_models import TinyModel, typed_tensors, write

SERVERS = 3
_FACT = re.compile(r"llama_context: (\w+) +(?:=) (\S+)$")
_BUILD = re.compile(r"build (\d+) \((\w+)\)")
_FAILURE = re.compile(r"GGML_ASSERT|GGML_ABORT| E |terminate")


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(prog="bench.planner.measure", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the table to write")
    parser.add_argument("--seed", type=int, default=1, help="of all choices (1)")
    parser.add_argument("--rows", type=int, default=100, help="launches (100)")
    parser.add_argument("--launches", type=int, default=4, help="launches of one model (4)")
    parser.add_argument("--engine", type=Path, help="a llama-server (the quickstart's)")
    parser.add_argument("--only", nargs="*", default=ARCHITECTURES, help="kinds of model")
    asked = parser.parse_args()
    engine = live_engine()
    if asked.engine is not None:
        engine = replace(engine, path=str(asked.engine.resolve()))
    with asked.out.open("w", encoding="utf-8") as out:
        for row in measured_rows(
            engine, seed=asked.seed, rows=asked.rows, launches=asked.launches, kinds=asked.only
        ):
            print(json.dumps(row), file=out, flush=True)


def measured_rows(
    engine: Engine, *, seed: int, rows: int, launches: int, kinds: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of the form that bench.planner reads; a launch that failed has `ok` false."""
    rng = Random(seed)
    with tempfile.TemporaryDirectory(prefix="rows-") as folder:
        for n in range(rows):
            if n % launches == 0:
                kind = kinds[n // launches % len(kinds)]
                model = random_model(rng, kind, name=f"{kind}-s{seed}-{n // launches}")
                path = write(model, Path(folder))
            yield _row(f"S{seed}-{n}", model, path, rng, engine)
            if n % launches == launches - 1:
                path.unlink()


def _row(name: str, model: TinyModel, path: Path, rng: Random, engine: Engine) -> dict[str, Any]:
    launched = random_launch(model, path, rng, engine)
    about = {"id": name, "model": model.name, "arch": model.architecture}
    return about | launched | {"gguf": described(model, path)}


def random_launch(model: TinyModel, path: Path, rng: Random, engine: Engine) -> dict[str, Any]:
    """The part of a row that tells of the launch: flags, and what the engine said.

    `model` decides what is chosen from; `path` is what is launched.
    """
    folder = Path(engine.path).parent
    with ExitStack() as held:
        # Addresses are chosen first: a choice of flags must not start servers for nothing.
        flags = random_flags(rng, model, [f"server{i}" for i in range(SERVERS)])
        for i in range(SERVERS):
            if any(f"server{i}" in flag for flag in flags):
                address = held.enter_context(rpc_server(folder)).address
                flags = tuple(flag.replace(f"server{i}", address) for flag in flags)
        has_twins = any("Vulkan1" in flag for flag in flags)
        heard = launch(path, flags, with_twins(engine) if has_twins else engine)
    resolved, buffers, error = told(heard)
    return {
        "source": "load", "build": _build(heard), "flags": list(flags), "ok": error is None,
        "error": error, "resolved": resolved, "buffers": buffers,
    }  # fmt: skip


def told(
    heard: Iterable[str],
) -> tuple[dict[str, Any], dict[str, dict[str, int]], str | None]:
    """What the engine made of its flags, its buffers, and the line it ended with if it failed."""
    resolved: dict[str, Any] = {}
    buffers: dict[str, dict[str, int]] = {}
    failure, is_ready = "", False
    for line in heard:
        if (buffer := parse_buffer_line(line)) is not None:
            held = buffers.setdefault(buffer.device, {})
            kind = buffer.kind.value
            adds = buffer.kind not in (BufferKind.COMPUTE, BufferKind.OUTPUT)
            held[kind] = buffer.n_bytes + (held.get(kind, 0) if adds else 0)
        elif (fact := _FACT.search(line)) is not None:
            resolved[fact[1]] = fact[2]
        elif "Flash Attention" in line:
            resolved["fa_resolved"] = line.partition(": ")[2]
        elif READY in line:
            is_ready = True
        elif _FAILURE.search(line):
            failure = failure or line[:300]
    return resolved, buffers, None if is_ready else failure or "it ended without a word"


def _build(heard: Iterable[str]) -> str:
    found = (match for line in heard if (match := _BUILD.search(line)))
    return next((f"{match[1]} ({match[2]})" for match in found), "unknown")


def described(model: TinyModel, path: Path) -> Mapping[str, Any]:
    """The model in a row's words: metadata and sums of tensors."""
    named = typed_tensors(model)
    layers, experts = [0] * model.n_layer, [0] * model.n_layer
    outside: dict[str, int] = {}
    for name, _, _, n_bytes in named:
        if not name.startswith("blk."):
            outside[name] = n_bytes
            continue
        i = int(name.split(".")[1])
        layers[i] += n_bytes
        experts[i] += n_bytes if is_expert(name) else 0
    return {
        "kv": {**model.facts.pairs, "n_vocab": model.n_vocab},
        "nonlayer_bytes": outside,
        "layer_bytes": layers,
        "layer_exps_bytes": experts,
        "types": [TENSOR_TYPES[number].name for _, _, number, _ in named],
        "max_tensor_bytes": max(n_bytes for *_, n_bytes in named),
        "file_bytes": path.stat().st_size,
        "n_tensors": len(named),
    }


if __name__ == "__main__":
    main()
