"""What the proxy asks of the fleet: the narrow door between HTTP and the machine."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from planners.lessons.usage import Usage
from planners.model import BrokenFile, ModelId, ServedModel
from planners.view import LineSeen, Observed
from planners.waiting.line import Priority
from supervisor.leases.lease import Lease


class Service(Protocol):
    """Models by name, leases on their slots: supervisor.fleet.Fleet, or the tests' fleet of one."""

    def resolve(self, name: str) -> ServedModel | None:
        """The model a caller means by `name`: exact id, alias, without case, ":latest" optional.

        Of several that share a process, the one it has, with the recipe of the name.
        """

    def offered(self, name: str) -> ServedModel | None:
        """Likewise, but as it is offered itself, also where it shares another's process."""

    def models(self) -> Sequence[ServedModel]:
        """All that is offered, by name."""

    def broken(self) -> Sequence[BrokenFile]:
        """Files that look like models and are none."""

    def running(self) -> Sequence[Observed]:
        """Every instance as it is now."""

    def lines(self) -> Sequence[LineSeen]:
        """Every model's line that somebody stands in."""

    def lease(
        self,
        model_id: ModelId,
        *,
        caller: str,
        keep_alive_s: float | None = None,
        context: int | None = None,
        priority: Priority = Priority.HIGH,
        takes_slot: bool = True,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """A slot of a ready child for as long as the block lasts, after a load where need be.

        `context`: tokens that the caller wants; the lease says what it gets. `priority`: what the
        caller says of its request, which can only lower its own. Without `takes_slot` the child
        alone, however busy it is. `can_pause`: whether what it is for can go on under another
        lease, or be asked again. `after`: the lease under which it was begun. Raises LeaseError.
        """

    async def until_gone(self, lease: Lease, *, within_s: float) -> str | None:
        """Returns once the child behind `lease` is known to be gone, or `within_s` have passed.

        Why it ended, as a clause; None where that is not known.
        """

    def crashed_alone(self, lease: Lease) -> bool:
        """Whether the child behind `lease`, which is gone, crashed and did nothing else then."""

    def moved(self, lease: Lease) -> str | None:
        """Why the child behind `lease` made way for another of its model; None: it did not."""

    def blames_engine(self, lease: Lease) -> bool:
        """Whether the end of the child behind `lease` is held against its engine, not a request.

        So it is while an engine is on trial, and where it was rolled back, of models that did not
        die on the one before it.
        """

    def answered(self, lease: Lease) -> None:
        """A request under `lease` was answered: the model can run."""

    def resumed(
        self, lease: Lease, *, cause: str, way: str, pause_s: float, n_computed: int
    ) -> None:
        """A reply whose child was lost goes on under `lease`.

        `cause`: what ended that child. `n_computed`: tokens that were computed once more.
        """

    def report(self, lease: Lease, usage: Usage) -> None:
        """What an exchange under `lease` did, for tokens/s in status."""

    async def load(
        self, model_id: ModelId, *, keep_alive_s: float | None = None, context: int | None = None
    ) -> float:
        """Seconds the load took, 0.0 where it was loaded. Raises LeaseError."""

    def unload(self, model_id: ModelId) -> bool:
        """Drain and stop the model's instance; False where none ran."""
