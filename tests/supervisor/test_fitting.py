"""supervisor.fitting: a hub's files ranked by the planner, from headers that come by ranges."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from planners.layout.outlook import Outlook, Surroundings, outlook
from planners.model import ServedModel
from supervisor.fitting import Fitting
from supervisor.store.hub_reading import HubReader
from supervisor.store.hub_repository import HubRepository
from supervisor.store.names import parse_name
from supervisor.store.pull_errors import NoModelThere, PullError
from supervisor.store.web import Web
from tests.fakes.gguf_writer import gguf, split_gguf
from tests.fakes.hub import REPOSITORY, FakeHub, hub
from tests.fakes.machines import CPU, PLAIN, RULES, machine
from tests.fakes.registry import Faults

AROUND = Surroundings(engines=(CPU,), rules=RULES, promised={}, held={})
MIB = 1 << 20


@dataclass
class Scene:
    """A hub, what reads it, and what was planned."""

    hub: FakeHub
    web: Web
    planned: list[ServedModel] = field(default_factory=list)

    async def reader(self) -> HubReader:
        """Of the repository as it is now."""
        name = parse_name(f"hf.co/{REPOSITORY}")
        repository = HubRepository(self.web, self.hub.at(), name)
        return HubReader(name, repository, await repository.listing())

    async def fitting(self) -> Fitting:
        """Of it, for a small machine."""

        async def plan(served: ServedModel) -> Outlook:
            self.planned.append(served)
            return outlook(served, machine(), AROUND)

        return Fitting(await self.reader(), plan, settings=PLAIN)


@asynccontextmanager
async def scene(faults: Faults | None = None) -> AsyncIterator[Scene]:
    async with hub(faults) as fake:
        web = Web(allows_plain=True, stall_s=5.0, head_s=5.0)
        try:
            yield Scene(fake, web)
        finally:
            await web.aclose()


async def test_one_header_and_that_of_the_pick_are_read_and_no_more_of_them_than_they_take() -> (
    None
):
    async with scene() as at:
        for n, label in enumerate(("Q2_K", "Q4_K_M", "Q6_K", "Q8_0")):
            at.hub.put(f"Tiny-{label}.gguf", gguf() + bytes((n + 2) * MIB))
        order = await (await at.fitting()).ranked(context=None)

    assert [(one.tag, one.is_estimate) for one in order] == [
        ("Q8_0", False), ("Q6_K", True), ("Q4_K_M", True), ("Q2_K", False),
    ]  # fmt: skip
    assert sum(at.hub.served_bytes.values()) == 2 * MIB
    assert all(one.range for one in at.hub.asked_for("/resolve/"))


@pytest.mark.parametrize("faults", [Faults(ignores_ranges=True), Faults(refuses_ranges=1)])
async def test_a_hub_that_sends_whole_files_is_read_as_far_as_is_wanted(faults: Faults) -> None:
    async with scene(faults) as at:
        at.hub.put("Tiny-Q4_K_M.gguf", gguf() + bytes(20 * MIB))
        order = await (await at.fitting()).ranked(context=None)

    assert [(one.tag, one.is_estimate) for one in order] == [("Q4_K_M", False)]
    assert sum(at.hub.served_bytes.values()) < 15 * MIB


async def test_what_is_a_model_by_its_name_alone_is_left_out() -> None:
    async with scene() as at:
        at.hub.put("Tiny-Q2_K.gguf", b"no GGUF at all")
        at.hub.put("Tiny-Q4_K_M.gguf", gguf())
        at.hub.put("Tiny-Q8_0.gguf", b"no GGUF at all, but longer" * 3000)
        order = await (await at.fitting()).ranked(context=None)

    assert (order[0].tag, order[0].is_estimate) == ("Q4_K_M", False)
    assert "Q8_0" not in [one.tag for one in order]


async def test_parts_count_as_one_file_and_a_projector_is_planned_for() -> None:
    async with scene() as at:
        for number, part in enumerate(split_gguf(2), start=1):
            at.hub.put(f"Tiny-F16-{number:05}-of-00002.gguf", part)
        at.hub.put("mmproj-F16.gguf", gguf("clip", pairs={"clip.has_vision_encoder": True}))
        (one,) = await (await at.fitting()).ranked(context=64)

    assert (one.tag, one.info.n_layer) == ("F16", 2)
    assert one.size_bytes == sum(map(len, split_gguf(2)))
    (served,) = at.planned
    assert served.settings.mmproj_path == "mmproj-F16.gguf"
    assert served.projector is not None


async def test_a_repository_of_no_readable_model_says_so() -> None:
    async with scene() as at:
        at.hub.put("README.md", b"#")
        with pytest.raises(NoModelThere):
            await at.reader()
        at.hub.put("Tiny-Q8_0.gguf", b"no GGUF at all")
        with pytest.raises(PullError, match="is no GGUF model"):
            await (await at.fitting()).ranked(context=None)
