"""What the admin door opens to: the questions and orders a daemon takes."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from planners.hardware import HardwareProfile
from planners.layout.outlook import Outlook
from planners.layout.variants import Candidate
from planners.model import ServedModel
from proxy.admin.engines import EngineOrder, EnginesReport
from proxy.admin.models import ModelsReport
from proxy.admin.move_requests import MoveRequest, YieldRequest
from proxy.admin.moves import MoveReport, YieldsReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.records import EventReport, Followed, LogReport
from proxy.admin.status import LockReport, StatusReport
from proxy.errors import ProxyError
from supervisor.store.names import StoreName
from supervisor.store.progress import Progress


class ReloadRefused(ProxyError):
    """The configuration as it stands now is wrong; the one in force stays in force."""


class AdminService(Protocol):
    """What the door opens to. Implemented by the daemon and, small, by the tests.

    Models are asked for by any of their names; those that take one raise UnknownModel.
    """

    def status(self) -> StatusReport:
        """Everything at one moment."""

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""

    def engines(self) -> EnginesReport:
        """Every engine build on disk."""

    async def decide_engine(self, order: EngineOrder) -> EnginesReport:
        """Use, pin or remove a build; what there is then. Raises BadRequest."""

    def models(self) -> ModelsReport:
        """What is on offer."""

    def offered(self, name: str) -> ServedModel:
        """The model of that name, as it is offered itself."""

    def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """Fetch it from its registry. Raises SupervisorError as it is iterated."""

    async def fit(
        self, name: StoreName, *, context: int | None, hardware: HardwareProfile | None
    ) -> Sequence[Candidate]:
        """The files of that repository, ranked for this machine or `hardware`, best first.

        Raises StoreError, HostUnread, PlanTookTooLong.
        """

    async def copy(self, source: str, destination: StoreName) -> None:
        """Have it under another name too. Raises StoreError."""

    async def delete(self, name: str) -> None:
        """Remove it from the daemon's own store. Raises StoreError."""

    async def plan(
        self,
        name: str,
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Outlook:
        """How it would be launched now, or on `hardware`; None leaves a number to the settings.

        Raises HostUnread where this machine cannot be read, and PlanTookTooLong.
        """

    async def plan_together(
        self,
        names: Sequence[str],
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Sequence[Outlook]:
        """Likewise for several models beside each other, each once.

        Raises HostUnread, PlanTookTooLong.
        """

    async def profile(self) -> str:
        """The machine as JSON for planners.profile_json. Raises HostUnread."""

    async def load(self, name: str) -> LoadReport:
        """Load it and wait. Raises LeaseError."""

    def unload(self, name: str) -> UnloadReport:
        """Drain and stop its instance."""

    async def migrate(self, asked: MoveRequest) -> MoveReport:
        """Move what runs of it, and wait. Raises MoveFailed, BadRequest, HostUnread."""

    async def yield_memory(self, asked: YieldRequest) -> YieldsReport:
        """Leave memory to others, or take it back. Raises BadRequest, HostUnread."""

    def retry(self, name: str) -> RetryReport:
        """Forget its failures: the next request tries it anew."""

    async def reload(self) -> ReloadReport:
        """Read the configuration again. Raises ReloadRefused."""

    def read_lock(self) -> LockReport:
        """Read API keys and certificate again; what is wrong with them is in the report."""

    async def log_lines(self, name: str, *, tail: int) -> LogReport:
        """The last `tail` lines of its process, or of the last one it had."""

    async def follow_log(self, name: str, *, tail: int) -> AsyncIterator[Followed]:
        """The same, and then each line as it is written, by this process and those after it."""

    async def events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> Sequence[EventReport]:
        """The latest `limit` events of the last `since_s` seconds, oldest first.

        Of a model that is no longer on offer too, where it ever was.
        """

    async def follow_events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> AsyncIterator[Followed]:
        """The same, and then each event as it happens."""

    async def forget(self, *, name: str | None, device: str | None) -> ForgetReport:
        """Drop what was learned of a model, of a device, or of all. Raises BadRequest."""
