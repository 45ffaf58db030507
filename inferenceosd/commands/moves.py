"""`inferenceosctl migrate` and `yield`: what runs moved by hand, and memory left to others."""

import click

from inferenceosd.commands.admin_client import WORK_S, Door
from inferenceosd.commands.arguments import ALL, Duration, Name, Shares, Size, as_json_option
from inferenceosd.commands.report import yield_text
from inferenceosd.commands.tables import many
from planners.durations import format_duration
from planners.sizes import format_size
from proxy.admin.moves import MoveReport, YieldsReport

MOVE_S = 24 * 3600.0  # the daemon knows when a load has stalled; we only wait


@click.command()
@click.argument("model", type=Name())
@click.option(
    "--layers", type=click.IntRange(0, 1 << 20), help="Layers on devices; 0 is the processor alone."
)
@click.option(
    "--tensor-split", type=Shares(), metavar="A,B,…", help="Shares of the devices, in their order."
)
@click.option(
    "--device", "devices", type=Name(), multiple=True, metavar="NAME", help="Repeat for several."
)
@click.option("--context", type=click.IntRange(1, 1 << 31), help="Tokens one request may use.")
@click.option("--parallel", type=click.IntRange(1, 1 << 16), help="Requests served at once.")
@as_json_option
@click.pass_obj
def migrate(
    door: Door,
    model: str,
    layers: int | None,
    tensor_split: tuple[float, ...] | None,
    devices: tuple[str, ...],
    context: int | None,
    parallel: int | None,
    as_json: bool,
) -> None:
    """Move MODEL, which runs, to other devices, layers, context or slots.

    Its streams go on in a moment: their callers see a pause. What is not named stays as it runs.
    NAME is a device as status shows it, or the engine's name for it.

    Where both fit, the next process loads beside the one that runs; else that ends first. One that
    does not get ready changes nothing: exit status 1, and the model runs as before.
    """
    if all(each in (None, ()) for each in (layers, tensor_split, devices, context, parallel)):
        raise click.UsageError(
            "say what is to change: --layers, --tensor-split, --device, --context or --parallel"
        )
    asked = {
        "model": model,
        "layers": layers,
        "tensor_split": tensor_split,
        "devices": devices or None,
        "context": context,
        "parallel": parallel,
    }
    answer = door.post("/migrate", MoveReport, body=asked, within_s=MOVE_S)
    answer.show(move_text, as_json=as_json)


def move_text(report: MoveReport) -> str:
    """Where it is now, and what went along."""
    where = ", ".join(f"{layers} layers on {device}" for device, layers in report.devices)
    took = f"{report.took_s:.1f} s" if report.took_s < 60 else format_duration(report.took_s)
    lines = [
        f"{report.model} moved in {took} ({report.order}):"
        f" {where or 'all layers on the processor'}, context {report.context} × {report.parallel}",
        f"{many(report.streams, 'stream')} {'goes' if report.streams == 1 else 'go'} on;"
        f" {many(report.slots, 'slot')} went along,"
        f" {format_size(report.moved_bytes)}",
    ]
    if report.streams and not report.keeps_math:
        lines.append("other devices round otherwise: replies go on, in words of their own")
    return "\n".join(lines)


@click.command(name="yield")
@click.argument("size", type=Size(), required=False)
@click.option("--device", type=Name(), metavar="NAME", help="Where; else where most of ours is.")
@click.option("--for", "for_s", type=Duration(), metavar="SPAN", help="For 2h, 30m, ...")
@click.option("--back", is_flag=True, help="Take back what was yielded.")
@as_json_option
@click.pass_obj
def yield_memory(
    door: Door,
    size: int | None,
    device: str | None,
    for_s: float | None,
    back: bool,
    as_json: bool,
) -> None:
    """Leave SIZE bytes of a device to others: a game, a render, a training run.

    As much as that comes free, and models take no more of it, until --for is over or --back. Idle
    models unload, those in use move to where there is room with their streams, and end once their
    requests are done where there is none. Then models move back to the faster place by themselves.

    SIZE is 6GiB or the like, or all. NAME is a device as status shows it, the engine's name for it,
    or host.
    """
    if back is (size is not None):
        raise click.UsageError("say how much, as 6GiB or all; or --back alone")
    asked = {
        "device": device,
        "n_bytes": None if size == ALL else size,
        "all": size == ALL,
        "for_s": for_s,
        "back": back,
    }
    answer = door.post("/yield", YieldsReport, body=asked, within_s=WORK_S)
    answer.show(returned_text if back else yields_text, as_json=as_json)


def yields_text(report: YieldsReport) -> str:
    """What others have from now on."""
    return "\n".join(map(yield_text, report.yields))


def returned_text(report: YieldsReport) -> str:
    """What models may have again."""
    told = (f"{format_size(each.n_bytes)} of {each.device}" for each in report.yields)
    return "\n".join(f"{each} is ours again" for each in told) or "nothing was yielded"
