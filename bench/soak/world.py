"""The machine of a soak: one daemon, three models of which two fit, and what is left of them."""

import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

from scripts.started_daemon import StartedDaemon, started_daemon

MODELS = ("small", "middle", "large")
CONTEXTS = (512, 768, 1024)
SLOTS = 2
LIMIT = "720MiB"  # each takes 300 to 350 MiB, with its process and a small prompt cache
ONE_THREAD = '["--threads", "1", "--threads-batch", "1"]'  # two models on two cores, and callers
KEEP_ALIVES = ("20s", "1m", "10m")


class UnfitWorld(Exception):
    """The machine does not hold exactly two of the three models."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a daemon without children holds of the system."""

    descriptors: int
    threads: int
    processes: int


@dataclass(slots=True)
class World:
    """A running daemon and the ways to look at it and to change it."""

    daemon: StartedDaemon
    model_file: Path
    admin: httpx.AsyncClient
    _process: psutil.Process = field(init=False)

    def __post_init__(self) -> None:
        self._process = psutil.Process(self.daemon.process.pid)

    @property
    def config(self) -> Path:
        """The daemon's configuration file."""
        return self.daemon.folder / "config.toml"

    def configure(self, chance: random.Random) -> None:
        """Other settings for the models, which keep their names and their answers."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(config_text(self.model_file, chance))
        fresh.replace(self.config)

    def hang_up(self) -> None:
        """SIGHUP: read the configuration again."""
        self.daemon.process.send_signal(signal.SIGHUP)

    async def instances(self) -> list[Any]:
        """As `inferenceosctl status --json` has them."""
        told = (await self.admin.get("/status")).raise_for_status().json()
        return list(told["instances"])

    async def post(self, path: str, body: Mapping[str, str] | None = None) -> httpx.Response:
        """Ask the admin door to do something; what it says is not judged here."""
        return await self.admin.post(path, json=body)

    def footprint(self) -> Footprint:
        """Of the daemon at this moment."""
        return Footprint(
            descriptors=self._process.num_fds(),
            threads=self._process.num_threads(),
            processes=len(self._process.children(recursive=True)),
        )

    def left_in_runtime_folder(self) -> list[str]:
        """Sockets and slot folders of children, which end with their child."""
        run = self.daemon.folder / "run"
        return [str(path.relative_to(run)) for path in run.rglob("i*-*.sock")]


def config_text(model_file: Path, chance: random.Random | None = None) -> str:
    """Three models of one file, told apart by their contexts; by chance other keep_alives."""
    lines = ["[memory]", f'limit = "{LIMIT}"', 'reserve = "0"', ""]
    for name, context in zip(MODELS, CONTEXTS, strict=True):
        keep_alive = chance.choice(KEEP_ALIVES) if chance else KEEP_ALIVES[-1]
        wider = 256 if chance and chance.random() < 0.2 else 0  # calls for another launch
        lines += [
            "[[model]]",
            f'name = "{name}"',
            f'path = "{model_file}"',
            f"context = {context + wider}",
            f"parallel = {SLOTS}",
            f"flags = {ONE_THREAD}",
            f'keep_alive = "{keep_alive}"',
            "",
        ]
    return "\n".join(lines)


@asynccontextmanager
async def living_world(model_file: Path) -> AsyncIterator[World]:
    """A world for as long as the block lasts. Raises UnfitWorld where not just two models fit."""
    with (
        TemporaryDirectory(prefix="ios-soak-") as name,
        started_daemon(Path(name), model_dirs=(), config=config_text(model_file)) as daemon,
    ):
        daemon.wait_for_engines()
        transport = httpx.AsyncHTTPTransport(uds=str(daemon.admin_socket))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://admin", timeout=60
        ) as admin:
            world = World(daemon, model_file, admin)
            await _check_fit(world)
            yield world


async def _check_fit(world: World) -> None:
    for name in MODELS:
        (await world.post("/load", {"model": name})).raise_for_status()
    loaded = [told["model"] for told in await world.instances() if told["state"] == "ready"]
    if len(loaded) != 2:
        raise UnfitWorld(f"{LIMIT} hold {len(loaded)} of {len(MODELS)} models: {loaded}")
