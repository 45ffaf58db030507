"""Which file of a repository suits a machine: planned by one header and sizes, the pick by its own.

One header is some MiB of vocabulary, and a repository has dozens of files.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planners.layout.outlook import Outlook
from planners.layout.variants import Candidate, estimated, ranked
from planners.model import ModelId, ModelInfo, ModelSettings, ServedModel
from supervisor.store.hub_files import Variant
from supervisor.store.hub_reading import HubReader
from supervisor.store.pull_errors import NoGguf, PullError

MOST_READ = 5  # headers of picks


class Fitting:
    """The files of one repository, and what plans them."""

    def __init__(
        self,
        reader: HubReader,
        planned: Callable[[ServedModel], Awaitable[Outlook]],
        *,
        settings: ModelSettings,
    ) -> None:
        self._reader, self._planned, self._settings = reader, planned, settings
        self._projectors: dict[str, ModelInfo | None] = {}

    async def ranked(self, *, context: int | None) -> tuple[Candidate, ...]:
        """Best first; the first one by its own header, unless that cannot be read.

        Raises PullError where not even one header can be, and what planning raises.
        """
        offered = sorted(
            self._reader.variants.items(), key=lambda pair: (len(pair[1].parts), pair[1].size_bytes)
        )
        known, info = await self._first_read(offered)
        candidates = []
        for tag, one in offered:
            guess = estimated(info, label=one.label, size_bytes=one.size_bytes)
            is_own = tag == known
            candidates.append(
                await self._candidate(tag, one, info if is_own else guess, is_estimate=not is_own)
            )
        return await self._settled(ranked(candidates, context=context), context=context)

    async def _first_read(self, offered: Sequence[tuple[str, Variant]]) -> tuple[str, ModelInfo]:
        """The first whose header can be read. Raises PullError where none of a few can be."""
        for tag, variant in offered[:MOST_READ]:
            try:
                return tag, await self._reader.read(variant)
            except NoGguf as exc:
                why = exc
        raise why

    async def _settled(
        self, order: tuple[Candidate, ...], *, context: int | None
    ) -> tuple[Candidate, ...]:
        """The same, once the first one is planned by its own header."""
        for _ in range(MOST_READ):
            first, *others = order
            if not first.is_estimate:
                break
            variant = self._reader.variants[first.tag]
            try:
                info = await self._reader.read(variant)
            except NoGguf:
                order = tuple(others)  # no model but by its name; one whose header was read is left
                continue
            except PullError:
                break  # its estimate stands
            planned = await self._candidate(first.tag, variant, info)
            order = ranked([planned, *others], context=context)
        return order

    async def _candidate(
        self, tag: str, variant: Variant, info: ModelInfo, *, is_estimate: bool = False
    ) -> Candidate:
        outlook = await self._planned(await self._served(tag, variant, info))
        label, size_bytes = variant.label, variant.size_bytes
        return Candidate(tag, label, size_bytes, info, outlook.answer, is_estimate=is_estimate)

    async def _served(self, tag: str, variant: Variant, info: ModelInfo) -> ServedModel:
        """The model as it would be offered, had it been pulled."""
        settings = self._settings
        if variant.projector is not None:
            settings = replace(settings, mmproj_path=variant.projector.path)
        return ServedModel(
            model_id=ModelId(tag),
            aliases=(),
            path=variant.path,
            info=info,
            settings=settings,
            size_bytes=variant.size_bytes,
            modified_at=0.0,
            file_key=info.digest,
            projector=await self._projector(variant),
        )

    async def _projector(self, variant: Variant) -> ModelInfo | None:
        if variant.projector is None:
            return None
        path = variant.projector.path
        if path not in self._projectors:
            try:
                self._projectors[path] = await self._reader.projector(variant)
            except PullError:
                self._projectors[path] = None  # planned without what nobody can tell
        return self._projectors[path]
