"""What inferenceosctl takes as arguments: spans of time and names of models."""

import math

import click

from inferenceosd.admin_client import fail
from planners.durations import BadDuration, parse_duration

NAME_BYTES = 2048  # escaped for an address, still within the 8 KiB that the daemon reads


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
