"""What inferenceosctl takes as arguments: spans of time, names of models, and how to print."""

import math

import click

from inferenceosd.commands.admin_client import fail
from planners.durations import BadDuration, parse_duration
from planners.sizes import MIB, BadSize, parse_size

ALL = -1  # of a Size
LEAST_BARE_BYTES = MIB  # nobody makes room for so few bytes: a unit was forgotten
NAME_BYTES = 2048  # escaped for an address, still within the 8 KiB that the daemon reads

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


class Duration(click.ParamType[float]):
    """A span of time, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = parse_duration(value)
        except BadDuration:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no span such as 90s, 30m or 1h30m", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """Bytes as 6GiB, or `all`, which is ALL. A small number without a unit is meant otherwise."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if value == "all":
            return ALL
        try:
            n_bytes = parse_size(str(value))
        except BadSize:
            n_bytes = 0
        if n_bytes <= 0:
            self.fail(f"{value!r} is no size such as 6GiB, and not all", param, ctx)
        if n_bytes < LEAST_BARE_BYTES and str(value).strip().isdecimal():
            told = f"{value} without a unit is {value} bytes; write {value}GiB or the like"
            self.fail(told, param, ctx)
        return n_bytes


class Shares(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them, as llama-server takes a tensor split."""

    name = "shares"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            shares = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            shares = ()
        if not shares or not all(0 <= share < math.inf for share in shares) or not any(shares):
            self.fail(f"{value!r} is no split such as 3,1", param, ctx)
        return shares


class Name(click.ParamType[str]):
    """What may be the name of a model; which are, the daemon knows."""

    name = "model"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        name = str(value)
        try:
            n_bytes = len(name.encode())
        except UnicodeEncodeError:
            fail(f"{name!r} is no model: it is no UTF-8")
        if n_bytes > NAME_BYTES:
            fail(f"no model has a name of {n_bytes} bytes; the longest have {NAME_BYTES}")
        return name
