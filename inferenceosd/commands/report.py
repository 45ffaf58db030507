"""What `inferenceosctl` prints for people: values in, text out. Pure; `now` is UTC seconds."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from inferenceosd.commands.tables import folded, many, table
from planners.durations import format_duration
from planners.model import BrokenFile
from planners.sizes import format_size
from planners.speed import format_rate
from proxy.admin.models import ModelsReport
from proxy.admin.moves import MigrationReport, YieldReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.records import EventReport, EventsReport, Followed, LogReport
from proxy.admin.status import (
    DeviceReport,
    InstanceReport,
    LineReport,
    LockReport,
    StatusReport,
)

NOTHING = "-"
UNKNOWN = "?"


def status_text(status: StatusReport, *, now: float) -> str:
    """The daemon, its instances, their memory, the devices, the engines, and what is broken."""
    daemon = status.daemon
    up = format_duration(max(0, now - daemon.started_at))
    head = f"inferenceosd {daemon.version}, pid {daemon.pid}, up {up}, serving {daemon.listen}"
    return _sections(
        head,
        _lock(daemon.lock),
        "\n".join(f"DEGRADED: {reason}" for reason in status.degraded),
        _instances(status.instances, now=now),
        _lines(status.lines),
        _moves(status.migrations),
        "\n".join(map(yield_text, status.yields)),
        _memory(status.instances),
        _speed(status.instances),
        *_causes(status.instances),
        _devices(status.devices),
        _engines(status),
        _broken(status.broken),
        *(f"note: {note}" for note in status.notes),
    )


def _moves(moves: Iterable[MigrationReport]) -> str:
    """What moves, and how far it is; "" where nothing does."""
    return "\n".join(
        f"MOVING: {move.model} for {move.since_s:.1f} s, {move.step}: {move.reason}"
        for move in moves
    )


def yield_text(given: YieldReport) -> str:
    """What others have of a device, and until when."""
    left_s = given.left_s
    left = "until it is taken back" if left_s is None else f"for {format_duration(left_s)}"
    return (
        f"YIELDED: {format_size(given.n_bytes)} of {given.device} {left}: at most"
        f" {format_size(given.limit_bytes)} for models, which take {format_size(given.ours_bytes)}"
    )


def _lock(lock: LockReport | None) -> str:
    """What is unusual about the port's lock; "" where nothing is."""
    if lock is None:
        return ""
    lines = []
    if lock.is_open:
        lines.append("OPEN: other machines may use all models without an API key (--insecure)")
    elif lock.keys:
        lines.append(f"locked: callers need an API key (keys: {lock.keys})")
    if lock.tls_expires_at is not None:
        lines.append(f"HTTPS: the certificate is good until {_date(lock.tls_expires_at)}")
    if lock.mistake is not None:
        lines.append(f"LOCK: {lock.mistake}")
    return "\n".join(lines)


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def models_text(report: ModelsReport) -> str:
    """The models on offer and the files that are none."""
    if not report.models:
        folders = " or ".join(report.dirs) or "a folder, and name it in models.dirs"
        offered = f"no models; put GGUF files into {folders}"
    else:
        rows = [
            (
                model.model,
                model.architecture,
                _count(model.n_params),
                model.quantization,
                format_size(model.size_bytes),
                str(model.n_ctx_train),
                ",".join(model.capabilities),
                model.state or NOTHING,
                ", ".join(model.aliases) or NOTHING,
            )
            for model in report.models
        ]
        headers = (
            "MODEL", "ARCH", "PARAMS", "TYPE", "SIZE", "TRAINED", "CAN", "STATE", "ALIASES",
        )  # fmt: skip
        offered = table(headers, rows, right="PARAMS SIZE TRAINED")
    warnings = [f"{m.model}: {warning}" for m in report.models for warning in m.warnings]
    return _sections(offered, "\n".join(warnings), _broken(report.broken))


def load_text(report: LoadReport) -> str:
    """That it is loaded."""
    if report.load_s == 0:
        return f"{report.model} was loaded already"
    return f"{report.model} loaded in {report.load_s:.1f} s"


def unload_text(report: UnloadReport) -> str:
    """That it is going."""
    if not report.was_loaded:
        return f"{report.model} was not loaded"
    said = f"{report.model} unloads as soon as its requests are done"
    return f"{said}; it is pinned, and loads again then" if report.is_pinned else said


def retry_text(report: RetryReport) -> str:
    """That its next request will find it closed to nobody."""
    if not report.had_failed:
        return f"{report.model} had not failed"
    return f"{report.model} is tried anew by its next request"


def reload_text(report: ReloadReport) -> str:
    """What the new configuration changed."""
    lines = list(report.changed)
    lines += [f"{setting}: takes effect at the next start" for setting in report.needs_restart]
    return "\n".join(lines) or "nothing changed"


def log_text(report: LogReport) -> str:
    """The lines as the process wrote them."""
    return "\n".join(report.lines)


def events_text(report: EventsReport, *, columns: int | None = None) -> str:
    """One line an event, oldest first; on a terminal of `columns` its reason is folded."""
    if not report.events:
        return "no events"
    rows = map(_event_cells, report.events)
    return table(("TIME", "EVENT", "MODEL", "REASON"), rows, columns=columns)


def followed_event(told: Followed, *, columns: int | None = None) -> Iterator[str]:
    """One event of those that are followed, likewise, in columns of their own."""
    if told.event is not None:
        at, kind, model, reason = _event_cells(told.event)
        yield folded(f"{at}  {kind:<20}  {model:<16}  ", reason, columns=columns)


def followed_event_json(told: Followed) -> Iterator[str]:
    """The event as one line of JSON."""
    if told.event is not None:
        yield msgspec.json.encode(told.event).decode()


def followed_log(told: Followed) -> Iterator[str]:
    """The line as the process wrote it."""
    if told.line is not None:
        yield told.line


def forget_text(report: ForgetReport) -> str:
    """What is forgotten."""
    what = "everything" if report.what == "all" else report.what
    told = [many(report.launches, "launch"), many(report.requests, "request")]
    if report.contexts:
        told.append(many(report.contexts, "context"))
    return f"forgot {what}: {', '.join(told)}"


def _event_cells(event: EventReport) -> tuple[str, str, str, str]:
    return (
        _date(event.at),
        event.kind,
        event.model or NOTHING,
        event.reason or ", ".join(f"{k}={v}" for k, v in event.facts.items()),
    )


def _sections(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _instances(instances: tuple[InstanceReport, ...], *, now: float) -> str:
    if not instances:
        return "no model is loaded"
    headers = (
        "MODEL", "STATE", "PID", "BACKEND", "LAYERS", "CONTEXT", "REQUESTS", "TOKENS/S", "STAYS",
    )  # fmt: skip
    rows = [
        (
            one.model,
            _state(one),
            str(one.pid or NOTHING),
            one.backend,
            ", ".join(f"{d.engine_name}:{d.layers}" for d in one.devices) or "cpu",
            f"{one.context} × {one.slots}",
            f"{one.running} + {one.waiting} waiting" if one.waiting else str(one.running),
            NOTHING if one.decode_tokens_per_s is None else f"{one.decode_tokens_per_s:.1f}",
            _stays(one, now=now),
        )
        for one in instances
    ]
    return table(headers, rows, right="PID TOKENS/S")


def _lines(lines: tuple[LineReport, ...]) -> str:
    rows = [
        (
            line.model,
            caller.caller or NOTHING,
            caller.priority,
            str(caller.waiting),
            str(caller.place),
            format_duration(line.oldest_wait_s),
        )
        for line in lines
        for caller in line.callers
    ]
    headers = ("MODEL", "CALLER", "PRIORITY", "WAITING", "PLACE", "LONGEST WAIT")
    return table(headers, rows, right="WAITING PLACE")


def _state(one: InstanceReport) -> str:
    if one.state == "loading" and one.load_progress is not None:
        return f"loading {one.load_progress:.0%}"
    if one.state == "backoff" and one.retry_in_s is not None:
        return f"backoff {format_duration(one.retry_in_s)}"
    return one.state


def _stays(one: InstanceReport, *, now: float) -> str:
    if one.stays_forever:
        return "forever"
    if one.expires_at is not None:
        return format_duration(max(0, one.expires_at - now))
    return "busy" if one.running or one.waiting else NOTHING


def _memory(instances: tuple[InstanceReport, ...]) -> str:
    rows = [
        (
            one.model,
            part.device,
            format_size(part.predicted_bytes),
            _size(part.measured_bytes),
            format_size(part.reserved_bytes),
            _size(part.overhead_bytes),
        )
        for one in instances
        for part in one.memory
    ]
    headers = ("MODEL", "DEVICE", "PREDICTED", "MEASURED", "RESERVED", "TAKEN")
    return table(headers, rows, right="PREDICTED MEASURED RESERVED TAKEN")


def _speed(instances: tuple[InstanceReport, ...]) -> str:
    """Tokens/s as predicted and as measured, and how long a load takes."""
    rows = [
        (
            one.model,
            _rate(one.speed.predicted_decode_tokens_per_s),
            _rate(one.speed.median_decode_tokens_per_s),
            _rate(one.speed.predicted_prompt_tokens_per_s),
            _rate(one.speed.median_prompt_tokens_per_s),
            NOTHING if one.load_s is None else f"{one.load_s:.1f} s",
            NOTHING if one.speed.median_load_s is None else f"{one.speed.median_load_s:.1f} s",
            f"{many(one.speed.launches, 'launch')}, {many(one.speed.requests, 'request')}",
        )
        for one in instances
    ]
    headers = (
        "MODEL", "DECODE/S", "MEASURED", "PROMPT/S", "MEASURED", "LOAD", "USUAL", "LEARNED FROM",
    )  # fmt: skip
    return table(headers, rows, right="DECODE/S MEASURED PROMPT/S LOAD USUAL")


def _rate(tokens_per_s: float | None) -> str:
    return NOTHING if tokens_per_s is None else format_rate(tokens_per_s)


def _causes(instances: tuple[InstanceReport, ...]) -> Iterable[str]:
    for one in instances:
        if one.cause is not None:
            again = f" (restarted {_times(one.restarts)})" if one.restarts else ""
            yield f"{one.model}: {one.cause}{again}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _devices(devices: tuple[DeviceReport, ...]) -> str:
    if not devices:
        return ""
    rows = [
        (
            device.device,
            device.name + ("" if device.is_used else " (not used)"),
            ",".join(device.engine_names) or NOTHING,
            _size(device.total_bytes),
            _size(device.free_bytes),
            format_size(device.ours_bytes),
            NOTHING if device.limit_bytes is None else format_size(device.limit_bytes),
        )
        for device in devices
    ]
    headers = ("DEVICE", "NAME", "ENGINE NAME", "TOTAL", "FREE", "OURS", "LIMIT")
    return table(headers, rows, right="TOTAL FREE OURS LIMIT")


def _engines(status: StatusReport) -> str:
    if not status.daemon.has_tried_engines:
        return "each llama-server found is being tried"
    if not status.engines:
        return "no llama-server was found"
    rows = [
        (
            engine.backend or NOTHING,
            engine.source,
            engine.path,
            f"refused: {engine.refused}" if engine.refused else engine.version or UNKNOWN,
        )
        for engine in status.engines
    ]
    return table(("ENGINE", "FROM", "PATH", "VERSION"), rows)


def _broken(files: tuple[BrokenFile, ...]) -> str:
    rows = [(file.path, ", ".join(file.names) or NOTHING, file.reason) for file in files]
    return table(("NOT OFFERED", "NAMES", "WHY"), rows)


def _size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)


def _count(number: int) -> str:
    """A parameter count as people say it: 135M, 7.6B."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)
