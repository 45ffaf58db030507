"""A real llama-server with chosen flags, on a socket: what the daemon's children are, bare."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from planners.gguf import parse_model
from planners.model import ModelInfo
from supervisor.children.child import Child, running
from supervisor.children.llama import client_of, is_healthy
from supervisor.engines.quickstart import packaged_engine
from supervisor.moving.slots import SlotDoor
from tests.fakes.real_engine import HEAD_BYTES, quickstart_model

START_S = 60.0
ASK_S = 150.0


@dataclass(frozen=True, slots=True)
class RealChild:
    """A loaded child."""

    process: Child
    client: httpx.AsyncClient
    folder: Path
    """Its slot folder."""
    socket_path: str

    @property
    def door(self) -> SlotDoor:
        """Where it takes orders about slots."""
        return SlotDoor(self.client, self.folder)

    async def ask(self, path: str, told: dict[str, Any]) -> Any:
        """Its reply to a request that is not streamed."""
        reply = await self.client.post(path, json=told)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def events(self, path: str, body: bytes, *, n: int | None = None) -> list[bytes]:
        """A stream's payloads; up to the `n`th that is no progress, then it hangs up."""
        found: list[bytes] = []
        n_told = 0
        async with self.client.stream("POST", path, content=body) as reply:
            if reply.status_code != 200:
                raise AssertionError((await reply.aread()).decode())
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if n_told == n:
                    break
                found.append(line.removeprefix("data: ").encode())
                n_told += b'"prompt_progress":' not in found[-1]
                if n_told == n:
                    break
        return found

    async def until_idle(self) -> None:
        """Return once no slot has work."""
        async with asyncio.timeout(ASK_S):
            while any(s["is_processing"] for s in (await self.client.get("/slots")).json()):
                await asyncio.sleep(0.02)


def info_of_file(path: Path) -> ModelInfo:
    """What a model file says of itself."""
    with path.open("rb") as file:
        return parse_model(file.read(HEAD_BYTES), file_bytes=path.stat().st_size)


@asynccontextmanager
async def real_child(
    folder: Path,
    *,
    model: Path | None = None,
    n_parallel: int = 1,
    context: int = 512,
    flags: Sequence[str] = (),
) -> AsyncIterator[RealChild]:
    """A child on the processor, loaded, with `context` tokens for each of its split slots.

    `folder` must be short, and may hold several: sockets are numbered.
    """
    packaged = packaged_engine()
    assert packaged is not None, "the quickstart's engine is missing: make test installs it"
    number = sum(1 for _ in folder.glob("*.slots"))
    socket_path, slots = str(folder / f"{number}.sock"), folder / f"{number}.slots"
    slots.mkdir(mode=0o700)
    argv = (
        str(packaged.path), "-m", str(model or quickstart_model()), "--host", socket_path,
        "--slot-save-path", str(slots), "-np", str(n_parallel), "-c", str(n_parallel * context),
        "--no-ui", "--offline", "--device", "none", "--fit", "off", "-fa", "on", "-cram", "0",
        "--sse-ping-interval", "2", "-t", "1", *flags,
    )  # fmt: skip
    env = {**os.environ, "GGML_VK_VISIBLE_DEVICES": "", **dict(packaged.env)}
    async with (
        running(
            argv, env=env, cwd=str(folder), stop_s=5.0, on_stdout=_unheard, on_stderr=_unheard
        ) as process,
        client_of(socket_path, timeout_s=ASK_S) as client,
    ):
        async with asyncio.timeout(START_S):
            while not await is_healthy(client):
                assert process.returncode is None, "\n".join(process.log.last(20))
                await asyncio.sleep(0.05)
        client.headers["Connection"] = "close"  # it hangs up on idle ones by itself, at any moment
        yield RealChild(process, client, slots, socket_path)


def decoded(events: Sequence[bytes]) -> list[dict[str, Any]]:
    """Payloads as objects, without the end's mark."""
    return [json.loads(event) for event in events if event != b"[DONE]"]


def _unheard(_: str) -> None:
    """Lines are in the log's tail."""
