"""The daemon as inferenceosctl sees it: what it is asked, and what it is told to do."""

import math
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic

import structlog
from msgspec.structs import replace

from inferenceosd import __version__
from inferenceosd.commands.recording import recorded_now
from inferenceosd.engine_desk import EngineDesk
from inferenceosd.happened import Happened
from inferenceosd.in_force import InForce
from inferenceosd.settings.config import Config
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.layout.outlook import NamedTwice, Outlook, asking, each_once, grouped
from planners.layout.variants import Candidate
from planners.model import ServedModel
from planners.moving.by_hand import BadMove, ByHand
from planners.moving.relief import ours_bytes
from proxy.admin.engines import EngineOrder, EnginesReport
from proxy.admin.models import ModelsReport, models_report
from proxy.admin.move_reports import migration_report, move_report, yield_report
from proxy.admin.move_requests import MoveRequest, YieldRequest
from proxy.admin.moves import MoveReport, YieldReport, YieldsReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.records import EventReport, Followed, LogReport
from proxy.admin.status import DaemonReport, LockReport, StatusReport, status_report
from proxy.errors import BadRequest, UnknownModel
from supervisor.engines.builds import BuildInUse, BuildsUnwritable, NoSuchBuild
from supervisor.moving.pressure_watch import NoSuchPlace, Yielded
from supervisor.store.names import StoreName
from supervisor.store.progress import Progress

log = structlog.get_logger(__name__)


class Control:
    """Implements proxy.admin.service.AdminService.

    It answers, and hands on orders; what comes of other settings is InForce's.
    """

    def __init__(self, in_force: InForce, *, listen: Sequence[str]) -> None:
        self._in_force, self._parts = in_force, in_force.parts
        self._listen = ", ".join(listen)
        self._started_at = time.time()
        self._happened = Happened(self._parts.fleet, self._parts.records)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._in_force.config

    @property
    def _desk(self) -> EngineDesk:
        return self._in_force.desk

    def status(self) -> StatusReport:
        """Everything at one moment."""
        return status_report(
            self._daemon(),
            instances=self._parts.fleet.running(),
            hardware=self._parts.fleet.last_profile,
            engines=self._desk.engines or (),
            rejected=self._desk.rejected,
            broken=self._parts.catalogue.broken,
            now_s=monotonic(),
            learned=self._parts.records.history.learned,
            resumed_at=self._parts.fleet.resumed_at,
            lines=self._parts.fleet.lines(),
            migrations=tuple(
                migration_report(one, now_s=monotonic()) for one in self._parts.fleet.moving.seen()
            ),
            yields=tuple(self._yield_reports(self._parts.fleet.pressure.yields())),
        )

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return self._parts.metrics.text()

    def models(self) -> ModelsReport:
        """What is on offer."""
        fleet = self._parts.fleet
        return models_report(
            fleet.models(),
            broken=fleet.broken(),
            instances=fleet.running(),
            dirs=self.config.model_dirs,
        )

    def offered(self, name: str) -> ServedModel:
        """The model of that name, as it is offered itself."""
        served = self._parts.fleet.offered(name)
        if served is None:
            raise UnknownModel(name)
        return served

    def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """Fetch it from its registry."""
        return self._parts.store.pull(name, insecure=insecure)

    async def fit(
        self, name: StoreName, *, context: int | None, hardware: HardwareProfile | None
    ) -> Sequence[Candidate]:
        """The files of that repository, ranked for this machine or `hardware`, best first."""
        from supervisor.fitting import Fitting  # late: it brings an HTTP client along

        outlook = partial(self._parts.fleet.prospects.outlook, elsewhere=hardware)
        settings = replace(self.config.model_defaults, context=context)
        reader = await self._parts.store.reader(name)
        return await Fitting(reader, outlook, settings=settings).ranked(context=context)

    async def copy(self, source: str, destination: StoreName) -> None:
        """Have it under another name too."""
        await self._parts.store.copy(source, destination)

    async def delete(self, name: str) -> None:
        """Remove it from the daemon's own store."""
        await self._parts.store.delete(name)

    async def plan(
        self,
        name: str,
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Outlook:
        """How it would be launched now, or on another machine."""
        asked = asking(self._served(name), context=context, parallel=parallel)
        return await self._parts.fleet.prospects.outlook(asked, elsewhere=hardware)

    async def plan_together(
        self,
        names: Sequence[str],
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> tuple[Outlook, ...]:
        """How they would be launched beside each other. Raises BadRequest for one named twice."""
        try:
            models = each_once([(name, self._served(name)) for name in names])
        except NamedTwice as exc:
            raise BadRequest(str(exc), param="models") from exc
        asked = tuple(asking(each, context=context, parallel=parallel) for each in models)
        planned = await self._parts.fleet.prospects.outlooks(asked, elsewhere=hardware)
        return grouped(planned, self.config.fleet.groups)

    async def profile(self) -> str:
        """The machine as JSON."""
        return recorded_now(await self._parts.fleet.profile(), dirs=self.config.model_dirs)

    async def load(self, name: str) -> LoadReport:
        """Load it and wait; what failed before is tried anew."""
        served = self._served(name)
        self._parts.fleet.retry(served.model_id)
        load_s = await self._parts.fleet.load(served.model_id)
        return LoadReport(served.model_id, load_s)

    def unload(self, name: str) -> UnloadReport:
        """Drain and stop its instance."""
        served = self._served(name)
        was_loaded = self._parts.fleet.unload(served.model_id)
        return UnloadReport(served.model_id, was_loaded, is_pinned=served.settings.pin)

    async def migrate(self, asked: MoveRequest) -> MoveReport:
        """Move what runs of a model as an operator spells it out, and wait."""
        asked.check()
        served, fleet = self._served(asked.model), self._parts.fleet
        told = ByHand(
            asked.layers, asked.tensor_split, asked.devices, asked.context, asked.parallel
        )
        try:
            moved = await fleet.moving.by_hand(
                served.model_id, told, reason="migrate was asked for"
            )
        except BadMove as exc:
            raise BadRequest(str(exc)) from exc
        plans = {seen.model_id: seen.plan for seen in fleet.running()}
        return move_report(moved, plans[moved.model_id])

    async def yield_memory(self, asked: YieldRequest) -> YieldsReport:
        """Leave memory to others from now on, or take it back."""
        fleet = self._parts.fleet
        hardware = await fleet.profile()
        try:
            if asked.back:
                told = fleet.pressure.take_back(hardware, asked.device)
            else:
                for_s = math.inf if asked.for_s is None else asked.for_s
                told = (fleet.pressure.give(hardware, asked.device, asked.n_bytes, for_s=for_s),)
        except NoSuchPlace as exc:
            raise BadRequest(str(exc), param="device") from exc
        return YieldsReport(tuple(self._yield_reports(told)))

    def _yield_reports(self, given: Iterable[Yielded]) -> Iterator[YieldReport]:
        hardware = self._parts.fleet.last_profile
        instances = self._parts.fleet.running()
        ours = ours_bytes(hardware, instances) if hardware is not None else {}
        for each in given:
            ours_there = ours.get(each.device_id, 0)
            yield yield_report(each, ours_bytes=ours_there, now_s=monotonic())

    def engines(self) -> EnginesReport:
        """Every build on disk."""
        return self._desk.report()

    async def decide_engine(self, order: EngineOrder) -> EnginesReport:
        """Do it, and go by it at once."""
        try:
            self._desk.obey(order.action, order.build)
        except (NoSuchBuild, BuildInUse, BuildsUnwritable) as exc:
            raise BadRequest(str(exc), param="build") from exc
        await self._in_force.find_engines()
        return self._desk.report()

    def retry(self, name: str) -> RetryReport:
        """Forget its failures: the next request tries it anew."""
        served = self._served(name)
        return RetryReport(served.model_id, self._parts.fleet.retry(served.model_id))

    async def reload(self) -> ReloadReport:
        """Read the configuration again and go by it. Raises ReloadRefused; then nothing changed."""
        return await self._in_force.reload()

    def read_lock(self) -> LockReport:
        """Go by keys and certificate as they are on disk now."""
        return self._in_force.read_lock()

    async def log_lines(self, name: str, *, tail: int) -> LogReport:
        """The last `tail` lines of its process, or of the last one it had, be it on disk alone."""
        return await self._happened.log_lines(name, tail=tail)

    async def follow_log(self, name: str, *, tail: int) -> AsyncIterator[Followed]:
        """The same, and then each line as it is written."""
        return await self._happened.follow_log(name, tail=tail)

    async def events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> Sequence[EventReport]:
        """The latest `limit` events of the last `since_s` seconds, oldest first."""
        return await self._happened.events(name=name, since_s=since_s, limit=limit)

    async def follow_events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> AsyncIterator[Followed]:
        """The same, and then each event as it happens."""
        return await self._happened.follow_events(name=name, since_s=since_s, limit=limit)

    async def forget(self, *, name: str | None, device: str | None) -> ForgetReport:
        """Drop what was learned of a model, of a device, or of all."""
        model_id = await self._happened.known(name)
        device_id = None if device is None else self._device(device)
        what = model_id or device_id or "all"
        launches, requests = await self._parts.records.history.forget(
            model_id=model_id, device=device_id
        )
        contexts = 0 if device is not None else await self._parts.records.contexts.forget(model_id)
        told = f"{what}: {launches} launches, {requests} requests and {contexts} contexts"
        log.info("history.forgotten", what=what, launches=launches, requests=requests)
        self._parts.records.journal.record("history.forgotten", model_id=model_id, reason=told)
        return ForgetReport(what, launches, requests, contexts)

    def _device(self, name: str) -> DeviceId:
        """The device that is meant, by its id, its name, or what an engine calls it."""
        hardware = self._parts.fleet.last_profile
        devices = () if hardware is None else hardware.devices
        for each in devices:
            if name in (each.device_id, each.name, *(n for _, n in each.engine_names)):
                return each.device_id
        if name != HOST and not self._parts.records.history.knows(DeviceId(name)):
            known = ", ".join([HOST, *(each.device_id for each in devices)])
            reason = f"nothing was learned of a device {name!r}; devices here: {known}"
            raise BadRequest(reason, param="device")
        return DeviceId(name)

    def _served(self, name: str) -> ServedModel:
        served = self._parts.fleet.resolve(name)
        if served is None:
            raise UnknownModel(name)
        return served

    def _daemon(self) -> DaemonReport:
        return DaemonReport(
            version=__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            listen=self._listen,
            config_file=self.config.file,
            state_dir=self._in_force.at_start.state_dir,
            has_tried_engines=self._desk.engines is not None,
            lock=self._parts.lock.report(),
        )
