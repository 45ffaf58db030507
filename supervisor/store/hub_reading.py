"""What files of a hub's repository are, by their headers: the first bytes, asked for by range."""

from collections.abc import Iterator
from contextlib import aclosing

from planners.ggml.header import MAX_HEADER_BYTES, GgufHeader
from planners.gguf import GgufError, NeedMore, model_info, read_header
from planners.model import ModelInfo
from supervisor.models.gguf_files import FIRST_READ_BYTES
from supervisor.store.hub_files import Choice, HubFile, HubListing, Variant
from supervisor.store.hub_repository import HubRepository
from supervisor.store.names import BadStoreName, StoreName
from supervisor.store.pull_errors import NoGguf, NoModelThere, RangesRefused


class HubReader:
    """One repository at one revision, read and not pulled."""

    def __init__(self, name: StoreName, repository: HubRepository, listing: HubListing) -> None:
        """Raises NoModelThere, RegistryOdd."""
        self._repository, self._listing = repository, listing
        offered = tuple(one for one in repository.models(listing) if one.is_measured)
        choice = Choice(offered)
        tags = ((next(_tags(one, choice, name), ""), one) for one in offered)
        self.variants = {tag: one for tag, one in tags if tag}
        """By what each is pulled by; another of the same name cannot be."""
        if not self.variants:
            raise NoModelThere(host=repository.host, repository=repository.name)

    async def read(self, variant: Variant) -> ModelInfo:
        """What it is, by the headers of all its parts. Raises PullError."""
        headers = [await self._header(part) for part in variant.parts]
        try:
            return model_info(headers)
        except GgufError as exc:
            raise self._no_model(variant.parts[0], exc) from exc

    async def projector(self, variant: Variant) -> ModelInfo | None:
        """Likewise of its projector, where it has one."""
        if variant.projector is None:
            return None
        return await self.read(Variant("", variant.projector.stem, (variant.projector,)))

    async def _header(self, file: HubFile) -> GgufHeader:
        head = bytearray()
        wanted_bytes = min(FIRST_READ_BYTES, file.size_bytes)
        while True:
            await self._read_on(file, head, wanted_bytes)
            try:
                return read_header(bytes(head), file_bytes=file.size_bytes)
            except NeedMore as exc:
                most = min(MAX_HEADER_BYTES, file.size_bytes)
                if len(head) >= most:
                    raise self._no_model(file, exc) from exc
                wanted_bytes = min(max(exc.wanted_bytes, 4 * len(head)), most)
            except GgufError as exc:
                raise self._no_model(file, exc) from exc

    async def _read_on(self, file: HubFile, head: bytearray, n_bytes: int) -> None:
        """The file's first `n_bytes`, where `head` has some of them already."""
        try:
            await self._fill(file, head, first=len(head), last=n_bytes - 1, n_bytes=n_bytes)
        except RangesRefused:  # from a hub that sends whole files, as much as is wanted
            head.clear()
            await self._fill(file, head, first=0, last=file.size_bytes - 1, n_bytes=n_bytes)

    async def _fill(
        self, file: HubFile, head: bytearray, *, first: int, last: int, n_bytes: int
    ) -> None:
        source = self._repository.file(self._listing, file)
        found = source.bytes_from(first, last, total_bytes=file.size_bytes)
        async with aclosing(found) as pieces:
            async for at, piece in pieces:
                if at != len(head):
                    head.clear()
                head += piece
                if len(head) >= n_bytes:
                    return

    def _no_model(self, file: HubFile, exc: Exception) -> NoGguf:
        return NoGguf(host=self._repository.host, path=file.path, reason=str(exc))


def _tags(variant: Variant, choice: Choice, name: StoreName) -> Iterator[str]:
    """What means that one in a name."""
    for tag in (variant.label, variant.stem):
        if choice.of(tag) is variant:
            try:
                yield StoreName(name.host, name.namespace, name.model, tag).tag
            except BadStoreName:
                continue
