"""The llama-servers that there are: found, tried, and looked at again where they were replaced."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from inferenceosd.settings.config import Config
from planners.backends import Engine, RejectedEngine
from planners.reconcile import NO_ENGINE
from supervisor.engines.backends import engines_key, find_engines
from supervisor.patience import NoAnswer, PatientReader
from supervisor.records.journal import Journal

ENGINES_S = 2.0  # to look whether a llama-server was replaced: a few stat calls

log = structlog.get_logger(__name__)


class KnownEngines:
    """What came of the last trials."""

    def __init__(self, journal: Journal, *, state_dir: Path) -> None:
        self._journal, self._state_dir = journal, state_dir
        self._key: tuple[str, ...] = ()
        self.tried: tuple[Engine, ...] | None = None
        """Those that run; None until they were tried."""
        self.rejected: tuple[RejectedEngine, ...] = ()

    async def find(self, config: Config) -> None:
        """Try every llama-server there is, and tell of each."""
        self._key = await self._on_disk(config)
        self.tried, self.rejected = await find_engines(
            configured=config.backends, state_dir=self._state_dir
        )
        _tell(self.tried, self.rejected)
        self._journal.record(
            "engine.found" if self.tried else "engine.missing",
            reason="; ".join(f"{r.path}: {r.reason}" for r in self.rejected),
            paths=", ".join(engine.path for engine in self.tried),
        )

    async def were_upgraded(self, config: Config) -> bool:
        """Whether files of llama-servers changed since they were tried."""
        return bool(self._key) and await self._on_disk(config) != self._key

    async def _on_disk(self, config: Config) -> tuple[str, ...]:
        """What tells of an upgrade; as before where the disk does not answer."""
        look = partial(engines_key, config.backends, self._state_dir)
        try:
            return await PatientReader("engines", look, limit_s=ENGINES_S).read()
        except NoAnswer:
            return self._key


def _tell(tried: Sequence[Engine], rejected: Sequence[RejectedEngine]) -> None:
    for refused in rejected:
        log.warning("engine.refused", path=refused.path, reason=refused.reason)
    for engine in tried:
        names = [device.name for device in engine.devices]
        log.info("engine.accepted", path=engine.path, backend=engine.backend, devices=names)
    if not tried:
        log.error("engine.missing", reason=NO_ENGINE)
