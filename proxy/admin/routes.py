"""The admin door's routes: JSON over HTTP, on the Unix socket only.

Whoever may open the socket may do all of it: its mode, 0600, is the access control.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from planners.hardware import HardwareProfile
from planners.near_names import near_names
from planners.profile_json import BadProfile, decode_profile
from planners.settings import MAX_NUMBER, MAX_SLOTS
from proxy import names
from proxy.admin.engines import EngineOrder, EnginesReport
from proxy.admin.fit import FitReport, fit_report
from proxy.admin.models import ModelsReport
from proxy.admin.move_requests import MoveRequest, YieldRequest
from proxy.admin.moves import MoveReport, YieldsReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.plan import (
    MAX_TOGETHER,
    PlanReport,
    PlansReport,
    plan_report,
    plans_report,
)
from proxy.admin.records import (
    DEFAULT_EVENTS,
    DEFAULT_LINES,
    MAX_EVENTS,
    MAX_LINES,
    EventsReport,
    Followed,
    LogReport,
)
from proxy.admin.service import AdminService, ReloadRefused
from proxy.admin.shelf import DoneReport, ShowReport
from proxy.admin.shelf_replies import pull_stream, show_report
from proxy.admin.status import LockReport, StatusReport
from proxy.bodies import decoded, read_body
from proxy.errors import BadRequest, CallerLeft, Dialect, ProxyError, UnknownModel, answer, body
from proxy.ollama.store_errors import in_ollamas_words, valid_name
from proxy.telemetry.metrics import CONTENT_TYPE
from supervisor.leases.lease import LeaseError, Stopping
from supervisor.moving.move import MoveFailed
from supervisor.planner import PlanTookTooLong
from supervisor.probe import HostUnread
from supervisor.records.journal_file import JournalUnreadable
from supervisor.store.errors import NotStored
from supervisor.store.names import TAG

MAX_BODY_BYTES = 64 << 10  # a name and two numbers
PARTING_S = 0.5  # for the last line of a stream
MAX_PLAN_BYTES = 2 << 20  # and a recorded machine, whose every character may be escaped


class _Forgotten(msgspec.Struct, forbid_unknown_fields=True):
    model: str | None = None
    device: str | None = None
    all: bool = False


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    model: str


class _Pulled(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    insecure: bool = False


class _Fitted(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    context: int | None = None
    hardware: str | None = None


class _Copied(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    destination: str


class _PlanRequest(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    context: int | None = None
    parallel: int | None = None
    hardware: str | None = None


class _PlansRequest(msgspec.Struct, forbid_unknown_fields=True):
    models: list[str]
    context: int | None = None
    parallel: int | None = None
    hardware: str | None = None


_NAMED = msgspec.json.Decoder(_Named)
_PULL = msgspec.json.Decoder(_Pulled)
_FIT = msgspec.json.Decoder(_Fitted)
_COPY = msgspec.json.Decoder(_Copied)
_MOVE = msgspec.json.Decoder(MoveRequest)
_ENGINE = msgspec.json.Decoder(EngineOrder)
_YIELD = msgspec.json.Decoder(YieldRequest)
_FORGOTTEN = msgspec.json.Decoder(_Forgotten)
_PLAN_REQUEST = msgspec.json.Decoder(_PlanRequest)
_PLANS_REQUEST = msgspec.json.Decoder(_PlansRequest)

_LAST = msgspec.json.encode(Followed(is_last=True)) + b"\n"

Handler = Callable[[Request], Awaitable[object]]


def build_admin_app(service: AdminService) -> Starlette:
    """The app for the admin socket."""
    door = _Door(service)
    routes = [
        Route("/status", _answering(service, door.status), methods=["GET"]),
        Route("/metrics", _answering(service, door.metrics), methods=["GET"]),
        Route("/models", _answering(service, door.models), methods=["GET"]),
        Route("/engines", _answering(service, door.engines), methods=["GET"]),
        Route("/engines", _answering(service, door.decide_engine), methods=["POST"]),
        Route("/show", _answering(service, door.show), methods=["POST"]),
        Route("/pull", _answering(service, door.pull), methods=["POST"]),
        Route("/fit", _answering(service, door.fit), methods=["POST"]),
        Route("/copy", _answering(service, door.copy), methods=["POST"]),
        Route("/delete", _answering(service, door.delete), methods=["POST"]),
        Route("/plan", _answering(service, door.plan), methods=["POST"]),
        Route("/plans", _answering(service, door.plans), methods=["POST"]),
        Route("/profile", _answering(service, door.profile), methods=["GET"]),
        Route("/load", _answering(service, door.load), methods=["POST"]),
        Route("/unload", _answering(service, door.unload), methods=["POST"]),
        Route("/migrate", _answering(service, door.migrate), methods=["POST"]),
        Route("/yield", _answering(service, door.yield_memory), methods=["POST"]),
        Route("/retry", _answering(service, door.retry), methods=["POST"]),
        Route("/reload", _answering(service, door.reload), methods=["POST"]),
        Route("/lock", _answering(service, door.lock), methods=["POST"]),
        Route("/logs", _answering(service, door.logs), methods=["GET"]),
        Route("/events", _answering(service, door.events), methods=["GET"]),
        Route("/forget", _answering(service, door.forget), methods=["POST"]),
    ]
    return Starlette(routes=routes)


def _answering(service: AdminService, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """`handler` with its value as JSON, and what it may raise as {"error": sentence}."""

    async def respond(request: Request) -> Response:
        try:
            value = await handler(request)
            return value if isinstance(value, Response) else _json(value)
        except (ReloadRefused, MoveFailed) as exc:
            return _json({"error": str(exc)}, status=409)
        except (HostUnread, JournalUnreadable, PlanTookTooLong) as exc:
            return _json({"error": str(exc)}, status=503)
        except CallerLeft:
            return Response(status_code=499)  # nobody reads it
        except asyncio.CancelledError:
            return _refusal(Stopping())  # not raised again: uvicorn logs what ends its task
        except UnknownModel as exc:
            return _refusal(_why_unknown(exc.name, service.models()))
        except (ProxyError, LeaseError) as exc:
            return _refusal(exc)

    return respond


@contextmanager
def _stored() -> Iterator[None]:
    """Within: a model that no store has is unknown, as it is to every other command."""
    try:
        yield
    except NotStored as exc:
        raise UnknownModel(exc.name) from exc


def _why_unknown(name: str, offered: ModelsReport) -> ProxyError:
    known = (own for each in offered.models for own in (each.model, *each.aliases))
    return names.unusable(name, offered.broken) or UnknownModel(
        name, near=near_names(name, known), hint="inferenceosctl models lists what is offered"
    )


class _Stream(StreamingResponse):
    """A line of JSON for each value, for as long as there are any; the caller sets the pace."""

    def __init__(self, values: AsyncIterator[Followed]) -> None:
        super().__init__(_lines(values), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            await _part(send)  # not raised again: uvicorn logs what ends its task


async def _part(send: Send) -> None:
    """The last word to a follower whose stream is ended because the daemon stops."""
    with suppress(TimeoutError, RuntimeError):  # a slow reader; a stream that had not begun
        async with asyncio.timeout(PARTING_S):
            await send({"type": "http.response.body", "body": _LAST, "more_body": False})


async def _lines(values: AsyncIterator[Followed]) -> AsyncIterator[bytes]:
    async for value in values:
        yield msgspec.json.encode(value) + b"\n"
    yield _LAST


def _refusal(exc: Exception) -> Response:
    """`exc` as {"error": sentence}. Raises it where it is a bug."""
    said = answer(exc, Dialect.OLLAMA)
    if said is None:
        raise exc
    return Response(
        body(said, Dialect.OLLAMA),
        status_code=said.status,
        headers={name.decode(): value.decode() for name, value in said.headers},
        media_type="application/json",
    )


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


class _Door:
    """Requests to calls."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    async def status(self, _: Request) -> StatusReport:
        return self._service.status()

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics(), headers={"content-type": CONTENT_TYPE.decode()})

    async def models(self, _: Request) -> ModelsReport:
        return self._service.models()

    async def show(self, request: Request) -> ShowReport:
        name = decoded(await _body(request), _NAMED).model
        return show_report(self._service.offered(name), name)

    async def pull(self, request: Request) -> Response:
        asked = decoded(await _body(request), _PULL)
        work = self._service.pull(valid_name(asked.model), insecure=asked.insecure)
        return await pull_stream(work)

    async def fit(self, request: Request) -> FitReport:
        asked = decoded(await _body(request, limit_bytes=MAX_PLAN_BYTES), _FIT)
        _check_numbers(context=asked.context)
        name = valid_name(asked.model)
        if name.tag != TAG:
            wanted = name.short.removesuffix(f":{name.tag}")
            raise BadRequest(f"all files are ranked: name {wanted} without a tag", param="model")
        hardware, origin = _machine(asked.hardware)
        with in_ollamas_words():
            order = await self._service.fit(name, context=asked.context, hardware=hardware)
        return fit_report(name, order, context=asked.context, origin=origin)

    async def copy(self, request: Request) -> DoneReport:
        asked = decoded(await _body(request), _COPY)
        name = valid_name(asked.destination)
        with in_ollamas_words(), _stored():
            await self._service.copy(asked.source, name)
        return DoneReport(name.short)

    async def delete(self, request: Request) -> DoneReport:
        name = decoded(await _body(request), _NAMED).model
        with in_ollamas_words(), _stored():
            await self._service.delete(name)
        return DoneReport(name)

    async def plan(self, request: Request) -> PlanReport:
        asked = decoded(await _body(request, limit_bytes=MAX_PLAN_BYTES), _PLAN_REQUEST)
        _check_numbers(context=asked.context, parallel=asked.parallel)
        hardware, origin = _machine(asked.hardware)
        outlook = await self._service.plan(
            asked.model, context=asked.context, parallel=asked.parallel, hardware=hardware
        )
        return plan_report(outlook, origin=origin)

    async def plans(self, request: Request) -> PlansReport:
        asked = decoded(await _body(request, limit_bytes=MAX_PLAN_BYTES), _PLANS_REQUEST)
        _check_numbers(context=asked.context, parallel=asked.parallel)
        if not 1 <= len(asked.models) <= MAX_TOGETHER:
            raise BadRequest(f"name 1 to {MAX_TOGETHER} models", param="models")
        hardware, origin = _machine(asked.hardware)
        outlooks = await self._service.plan_together(
            asked.models, context=asked.context, parallel=asked.parallel, hardware=hardware
        )
        return plans_report(outlooks, origin=origin)

    async def profile(self, _: Request) -> msgspec.Raw:
        return msgspec.Raw((await self._service.profile()).encode())

    async def load(self, request: Request) -> LoadReport:
        return await self._service.load(decoded(await _body(request), _NAMED).model)

    async def unload(self, request: Request) -> UnloadReport:
        return self._service.unload(decoded(await _body(request), _NAMED).model)

    async def migrate(self, request: Request) -> MoveReport:
        return await self._service.migrate(decoded(await _body(request), _MOVE))

    async def yield_memory(self, request: Request) -> YieldsReport:
        asked = decoded(await _body(request), _YIELD)
        asked.check()
        return await self._service.yield_memory(asked)

    async def retry(self, request: Request) -> RetryReport:
        return self._service.retry(decoded(await _body(request), _NAMED).model)

    async def reload(self, _: Request) -> ReloadReport:
        return await self._service.reload()

    async def engines(self, _: Request) -> EnginesReport:
        return self._service.engines()

    async def decide_engine(self, request: Request) -> EnginesReport:
        return await self._service.decide_engine(decoded(await _body(request), _ENGINE))

    async def lock(self, _: Request) -> LockReport:
        return self._service.read_lock()

    async def logs(self, request: Request) -> LogReport | _Stream:
        query = request.query_params
        if "model" not in query:
            raise BadRequest("say whose log: ?model=NAME", param="model")
        tail = _whole(query, "tail", default=DEFAULT_LINES, most=MAX_LINES)
        if _is_followed(query):
            return _Stream(await self._service.follow_log(query["model"], tail=tail))
        return await self._service.log_lines(query["model"], tail=tail)

    async def events(self, request: Request) -> EventsReport | _Stream:
        query = request.query_params
        since_s = _whole(query, "since_s", default=0, most=MAX_NUMBER)
        limit = _whole(query, "limit", default=DEFAULT_EVENTS, most=MAX_EVENTS)
        asked = self._service.follow_events if _is_followed(query) else self._service.events
        told = await asked(name=query.get("model"), since_s=since_s or None, limit=limit)
        return EventsReport(tuple(told)) if isinstance(told, Sequence) else _Stream(told)

    async def forget(self, request: Request) -> ForgetReport:
        asked = decoded(await _body(request), _FORGOTTEN)
        if sum((asked.model is not None, asked.device is not None, asked.all)) != 1:
            raise BadRequest("say what to forget: a model, a device, or all", param="model")
        return await self._service.forget(name=asked.model, device=asked.device)


async def _body(request: Request, *, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    return await read_body(request.receive, request.headers.raw, limit_bytes=limit_bytes)


def _check_numbers(*, context: int | None, parallel: int | None = None) -> None:
    for name, number, most in (("context", context, MAX_NUMBER), ("parallel", parallel, MAX_SLOTS)):
        if number is not None and not 1 <= number <= most:
            raise BadRequest(f"{name} must be from 1 to {most}", param=name)


def _machine(text: str | None) -> tuple[HardwareProfile | None, str | None]:
    """A recorded machine and where its profile is from; None, None for this one."""
    if text is None:
        return None, None
    try:
        recorded = decode_profile(text)
    except BadProfile as exc:
        raise BadRequest(str(exc), param="hardware") from exc
    return recorded.hardware, recorded.origin


def _is_followed(query: Mapping[str, str]) -> bool:
    return query.get("follow", "0") not in ("", "0")


def _whole(query: Mapping[str, str], name: str, *, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and int(text) <= most):
        raise BadRequest(f"{name} must be a whole number up to {most}", param=name)
    return int(text)
