"""`inferenceosctl engines`: the builds of llama-server on disk, and which of them is to be used.

Works with and without a daemon; a running one goes by the change before the command ends.
"""

import asyncio
import os
import tempfile
from pathlib import Path

import click
import msgspec

from inferenceosd.commands.admin_client import WORK_S, Door, fail
from inferenceosd.commands.arguments import as_json_option
from inferenceosd.commands.tables import table
from inferenceosd.lean_imports import lean_imports
from inferenceosd.settings.config import Options, read_config
from inferenceosd.settings.error import ConfigError
from planners.backends import Engine, RejectedEngine
from proxy.admin.engines import BuildReport, EnginesReport, build_report
from supervisor.engines.builds import (
    BuildInUse,
    Builds,
    BuildsUnwritable,
    NoSuchBuild,
    Order,
    builds_folder,
)


@click.group(invoke_without_command=True)
@click.pass_context
def engines(context: click.Context) -> None:
    """Show, choose, hold, remove and try builds of llama-server.

    scripts/build_backends.sh makes them. A new one decodes a tiny model before it is believed; then
    one model tries it, and only when that has answered do the others move there. Where it fails and
    the one before it did not, it is rolled back, with an event that says why.

    BUILD is an id as `list` shows it, or BACKEND/ID.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_builds)


@engines.command(name="list")
@as_json_option
@click.pass_obj
def list_builds(door: Door, as_json: bool) -> None:
    """List the builds, by backend, the newest first."""
    if door.is_silent():
        report = _report(_builds())
        click.echo(_json(report) if as_json else engines_text(report))
        return
    door.get("/engines", EnginesReport).show(engines_text, as_json=as_json)


@engines.command()
@click.argument("build")
@click.pass_obj
def use(door: Door, build: str) -> None:
    """Use BUILD from now on, on trial where another one of its backend serves already.

    What made it be rolled back is forgotten. A build that is pinned goes before it.
    """
    _decide(door, Order.USE, build)


@engines.command()
@click.argument("build")
@click.option("--off", is_flag=True, help="No longer hold it.")
@click.pass_obj
def pin(door: Door, build: str, off: bool) -> None:
    """Hold BUILD: this one and no other of its backend, without a trial."""
    _decide(door, Order.UNPIN if off else Order.PIN, build)


@engines.command()
@click.argument("build")
@click.pass_obj
def remove(door: Door, build: str) -> None:
    """Delete BUILD from the disk; not one that is current, proven or pinned."""
    _decide(door, Order.REMOVE, build)


@engines.command(name="try")
@click.argument("build")
@click.pass_obj
def try_build(door: Door, build: str) -> None:
    """Try BUILD, or the llama-server at a path, and say what it can do here.

    It is asked for its version, flags and devices, and decodes a tiny model, each within a time
    limit, by this command: nothing is remembered, and a daemon is only asked where BUILD lies. Exit
    status 1 where it cannot serve here.
    """
    path = build if _is_path(build) else _named(door, build).path
    engine = asyncio.run(_tried(os.path.abspath(path)))
    if isinstance(engine, RejectedEngine):
        fail(f"{engine.path}: {engine.reason}")
    click.echo(trial_text(engine))


def engines_text(report: EnginesReport) -> str:
    """One line a build."""
    if not report.builds:
        return (
            "no builds; scripts/build_backends.sh makes one"
            " (inferenceosctl status shows the engines in use, wherever they are from)"
        )
    rows = [
        (one.backend, one.build_id, one.version, one.built_at or "-", "; ".join(_notes(one)) or "-")
        for one in report.builds
    ]
    return table(("BACKEND", "BUILD", "VERSION", "BUILT", "STATE"), rows)


def trial_text(engine: Engine) -> str:
    """What a build that decoded can do."""
    devices = ", ".join(f"{d.name} ({d.description})" for d in engine.devices)
    stamps = "with" if engine.log.has_stamps else "without"
    abilities = [
        ("version", engine.version),
        ("for", engine.backend),
        ("devices", devices or "none: the processor alone"),
        ("options", f"{len(engine.flags)}"),
        ("decodes", "yes"),
        ("saves slots", "yes" if engine.saves_slots else "no: moves read conversations again"),
        ("protocol", "yes" if engine.speaks_child_protocol else "no: loads show no progress"),
        ("log", f"--verbosity {engine.log.buffers_verbosity}, {stamps} times"),
    ]
    return "\n".join(f"{name:12} {value}" for name, value in abilities)


def _is_path(build: str) -> bool:
    """True for what BACKEND/ID cannot be: rooted or dotted, or there on the disk."""
    is_file = os.sep in build and os.path.exists(build)
    return is_file or build.startswith((os.sep, f".{os.sep}", f"..{os.sep}"))


def _notes(one: BuildReport) -> list[str]:
    told = (
        (one.is_pinned, "pinned"),
        (one.is_current, "current"),
        (one.is_used, "in use"),
        (one.is_on_trial, "on trial"),
        (one.is_proven, "proven"),
        (one.failed is not None, f"failed: {one.failed}"),
    )
    return [word for holds, word in told if holds]


def _decide(door: Door, order: Order, name: str) -> None:
    if not door.is_silent():
        body = {"action": order.value, "build": name}
        answer = door.post("/engines", EnginesReport, body=body, within_s=WORK_S)
        answer.show(engines_text, as_json=False)
        return
    builds = _builds()
    try:
        builds.obey(order, name)
    except (NoSuchBuild, BuildInUse, BuildsUnwritable) as exc:
        fail(str(exc))
    click.echo(engines_text(_report(builds)))


def _named(door: Door, name: str) -> BuildReport:
    """The build of that name: the daemon's, which may keep them elsewhere, or ours without one."""
    silent = door.is_silent()
    report = _report(_builds()) if silent else door.get("/engines", EnginesReport).value
    try:
        return report.named(name)
    except NoSuchBuild as exc:
        fail(str(exc))


def _builds() -> Builds:
    try:
        config = read_config(Options())
    except ConfigError as exc:
        fail(str(exc))
    return Builds(builds_folder(Path(config.state_dir)))


def _report(builds: Builds) -> EnginesReport:
    return EnginesReport(tuple(build_report(build) for build in builds.all()))


def _json(report: EnginesReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


async def _tried(path: str) -> Engine | RejectedEngine:
    """The engine at `path`, decoding, or why it does not."""
    with lean_imports():  # late: what starts processes, which no other command needs
        from supervisor.engines.backends import find_engines

    with tempfile.TemporaryDirectory(prefix="ios-try-") as folder:
        found = await find_engines(
            configured=(("tried", path, ()),),
            state_dir=Path(folder),
            search_path="",
            quickstart=False,
            remember=False,
        )
    return found.engines[0] if found.engines else found.rejected[0]
