"""The daemon's own store, real, in a folder of its own; and a fleet that offers what is in it."""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from planners.model import BrokenFile, ServedModel
from proxy.service import Service
from supervisor.models.catalogue import Catalogue
from supervisor.models.places import Place
from supervisor.store.hubs import HUB, Hub
from supervisor.store.keeper import StoreKeeper
from supervisor.store.sources import PACE, Pace
from tests.fakes.fleet_of_one import FleetOfOne, served_model
from tests.fakes.machines import PLAIN


class ShelfFleet(FleetOfOne):
    """Offers what its catalogue finds: in `folder`/models, and in its own store."""

    def __init__(
        self, folder: Path, *, pace: Pace = PACE, hub: Hub = HUB, places: tuple[Place, ...] = ()
    ) -> None:
        super().__init__(served_model(), folder)
        self.dir, self.own = folder / "models", folder / "store"
        self.dir.mkdir(exist_ok=True)
        self.catalogue = Catalogue(
            dirs=(str(self.dir),),
            rules=(),
            defaults=PLAIN,
            own_store=str(self.own),
            places=places,
        )
        self.events: list[tuple[str, str]] = []
        self.store = StoreKeeper(
            str(self.own),
            offered=self.offered,
            changed=self.catalogue.look_again,
            record=lambda kind, name, reason: self.events.append((kind, name.short)),
            pace=pace,
            hub=hub,
        )

    def resolve(self, name: str) -> ServedModel | None:
        return self.catalogue.resolve(name)

    def models(self) -> Sequence[ServedModel]:
        return tuple(self.catalogue.models.values())

    def broken(self) -> Sequence[BrokenFile]:
        return self.catalogue.broken


@asynccontextmanager
async def kept_store(
    service: Service, store: StoreKeeper | None = None
) -> AsyncIterator[StoreKeeper]:
    """`store`, else an empty one that notices no change, open for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="ios-store-") as folder:
        kept = store or StoreKeeper(folder, offered=service.offered, changed=_unnoticed)
        async with kept.opened():
            yield kept


async def _unnoticed() -> None:
    """The fleet of one offers what it offers."""
