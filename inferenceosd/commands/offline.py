"""What `inferenceosctl` answers without a daemon: a file's plan, this machine's hardware, logs.

Uses the same settings, engines and planners as the daemon would here.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from inferenceosd.commands.recording import recorded_now
from inferenceosd.settings.config import Config, Options, read_config
from planners.backends import Engine
from planners.errors import PlanError
from planners.gguf import GgufError
from planners.hardware import HardwareProfile
from planners.layout.other_machine import engines_there
from planners.layout.outlook import (
    NamedTwice,
    Surroundings,
    asking,
    grouped,
    outlook,
    outlooks,
)
from planners.model import BrokenFile, ModelId, ServedModel
from planners.profile_json import decode_profile
from proxy.admin.plan import PlanReport, PlansReport, plan_report, plans_report
from proxy.admin.records import LogReport
from supervisor.children.child_logs import FOLDER, last_lines
from supervisor.engines.backends import find_engines
from supervisor.errors import SupervisorError
from supervisor.models.catalogue import Catalogue
from supervisor.models.gguf_files import file_at, read_model
from supervisor.probe import HardwareProbe


class CannotPlan(PlanError):
    """The file is no model, or cannot be read."""


class NoLog(SupervisorError):
    """No process of the model left a log here."""

    def __init__(self, *, model_id: ModelId, folder: str) -> None:
        self.model_id, self.folder = model_id, folder
        super().__init__(f"no inferenceosd runs, and {folder} has no log of model '{model_id}'")


def is_path(model: str) -> bool:
    """True where a model is named by its file rather than by its name, as ./x and /x always are."""
    if model.startswith(("/", "./", "../")):
        return True
    return model.endswith(".gguf") and (os.sep in model or os.path.isfile(model))


def plan_file(
    path: str, *, context: int | None, parallel: int | None, hardware: str | None
) -> PlanReport:
    """How the file would be launched here, or on a recorded machine; nothing else running.

    Raises ConfigError, PlanError, SupervisorError.
    """
    config = read_config(Options())
    served = _served(path, config, context=context, parallel=parallel)
    machine, origin, around = _surroundings(config, hardware)
    return plan_report(outlook(served, machine, around), origin=origin)


def plan_files(
    paths: Sequence[str], *, context: int | None, parallel: int | None, hardware: str | None
) -> PlansReport:
    """Likewise for several files beside each other."""
    config = read_config(Options())
    models: dict[ModelId, ServedModel] = {}
    for path in map(os.path.abspath, paths):
        served = _served(path, config, context=context, parallel=parallel)
        if (twin := models.get(served.model_id)) is not None:
            if os.path.realpath(path) == os.path.realpath(twin.path):
                raise NamedTwice(model_id=served.model_id, names=(twin.path, path))
            raise CannotPlan(f"{path} and {twin.path} are both named {served.model_id}")
        models[served.model_id] = served
    machine, origin, around = _surroundings(config, hardware)
    planned = outlooks(tuple(models.values()), machine, around)
    return plans_report(grouped(planned, config.fleet.groups), origin=origin)


def _surroundings(
    config: Config, hardware: str | None
) -> tuple[HardwareProfile, str | None, Surroundings]:
    """This machine or a recorded one and its origin, with its engines and nothing running."""
    engines = asyncio.run(_engines(config))
    if hardware is None:
        machine, origin = asyncio.run(_profile(config, engines)), None
    else:
        recorded = decode_profile(hardware)
        machine, origin = recorded.hardware, recorded.origin
        engines = engines_there(machine, here=engines)
    return machine, origin, Surroundings(engines, config.placement, {}, {})


def profile_here() -> str:
    """This machine as JSON. Raises ConfigError, SupervisorError."""
    config = read_config(Options())
    engines = asyncio.run(_engines(config))
    return recorded_now(asyncio.run(_profile(config, engines)), dirs=config.model_dirs)


def model_dirs_here() -> tuple[str, ...]:
    """Where a daemon started here would look for models. Raises ConfigError."""
    return read_config(Options()).model_dirs


def log_here(name: str, *, tail: int) -> LogReport:
    """The last `tail` lines that a daemon of this configuration kept of the model's process.

    Raises ConfigError, NoLog.
    """
    config = read_config(Options())
    catalogue = Catalogue(
        dirs=config.model_dirs,
        rules=config.models,
        defaults=config.model_defaults,
        places=config.places,
    )
    asyncio.run(catalogue.scan())
    served = catalogue.resolve(name)
    model_id = ModelId(name) if served is None else served.model_id
    folder = Path(config.state_dir) / FOLDER
    if lines := last_lines(folder, model_id, tail):
        return LogReport(model_id, lines)
    raise NoLog(model_id=model_id, folder=str(folder))


async def _engines(config: Config) -> tuple[Engine, ...]:
    found = await find_engines(
        configured=config.backends, state_dir=Path(config.state_dir), remember=False
    )
    return found.engines


async def _profile(config: Config, engines: tuple[Engine, ...]) -> HardwareProfile:
    probe = HardwareProbe(engines, config.placement, folders=config.model_dirs)
    return await probe.profile()


def _served(path: str, config: Config, *, context: int | None, parallel: int | None) -> ServedModel:
    name = os.path.basename(path).removesuffix(".gguf")
    file = file_at(os.path.abspath(path), name=name)
    if isinstance(file, BrokenFile):
        raise CannotPlan(f"{path}: {file.reason}")
    try:
        info = read_model(file)
    except (GgufError, OSError) as exc:
        raise CannotPlan(f"{path}: {exc}") from exc
    served = ServedModel(
        model_id=ModelId(name),
        aliases=(),
        path=file.path,
        info=info,
        settings=config.model_defaults,
        size_bytes=file.size_bytes,
        modified_at=file.modified_ns / 1e9,
        file_key=file.key,
    )
    return asking(served, context=context, parallel=parallel)
