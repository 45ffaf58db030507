"""The proxy before the real engine, which has the quickstart's model under any template."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from msgspec.structs import replace

from planners.gguf import parse_model
from proxy.door import DoorSettings
from supervisor.engines.quickstart import packaged_engine, quickstart_model_dir
from tests.fakes.chat_templates import with_template
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, Served, serving

HEAD_BYTES = 16 << 20  # this model's header is 1.7 MB


@asynccontextmanager
async def engine(
    folder: Path,
    *,
    n_ctx: int = 1024,
    template: str | None = None,
    path: Path | None = None,
    settings: DoorSettings = SETTINGS,
    ui: bool = False,
    more: tuple[str, ...] = (),
) -> AsyncIterator[tuple[FleetOfOne, Served]]:
    """On the CPU. `template` instead of the model's own; `path` of another model; `more` flags."""
    packaged = packaged_engine()
    assert packaged is not None, "the quickstart's engine is missing: make test installs it"
    path = path or quickstart_model()
    if template is not None:
        path = with_template(path, template, folder / "another.gguf")
    with path.open("rb") as file:
        info = parse_model(file.read(HEAD_BYTES), file_bytes=path.stat().st_size)
    variables = [f"{key}={value}" for key, value in packaged.env]
    # That costs 0.7 s a launch, and pays off over sixty tokens or a prompt with tools.
    as_in_file = ("--no-repack",) if template is None else ()
    argv = (
        "env", "GGML_VK_VISIBLE_DEVICES=", *variables, str(packaged.path),
        "--device", "none", "--fit", "off", "-lv", "4", "-b", "256", "-ub", "64",
        "-t", "1",  # two would wait for each other wherever something else runs as well
        *as_in_file, *more,
    )  # fmt: skip
    model = served_model(model_id="smollm2", path=str(path), info=info)
    async with (
        fleet_of_one(folder, model=model, argv=argv, n_ctx=n_ctx) as fleet,
        serving(fleet, settings=replace(settings, ui=ui)) as at,
    ):
        yield fleet, at


def quickstart_model() -> Path:
    """The file that the quickstart installs."""
    models = quickstart_model_dir()
    assert models is not None, "the quickstart's model is missing: make test installs it"
    (path,) = models.glob("*.gguf")
    return path


@asynccontextmanager
async def child_client(fleet: FleetOfOne) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the child itself, with nothing of ours between."""
    assert fleet.child is not None
    transport = httpx.AsyncHTTPTransport(uds=fleet.child.socket_path)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://child", timeout=150
    ) as client:
        yield client
