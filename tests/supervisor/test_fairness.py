"""A crowd and a chat at the same model, over HTTP, with the fleet and the fake engine."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from planners.waiting.callers import CallerRule, callers_of
from planners.waiting.line import Priority
from tests.fakes.fleet_world import TINY, MakeWorld, World
from tests.fakes.serving import Served, serving

BATCH = 500
BATCH_ADDRESS, CHAT_ADDRESS = "127.0.0.2", "127.0.0.3"
ASKED = {"model": TINY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@asynccontextmanager
async def client_at(address: str, served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls from an address of its own."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    async with httpx.AsyncClient(
        transport=transport, base_url=served.url, timeout=60, trust_env=False
    ) as client:
        yield client


@asynccontextmanager
async def crowd(
    world: World, served: Served, *, requests: int, headers: Mapping[str, str] | None = None
) -> AsyncIterator[list[int]]:
    """So many requests of one caller, sent at once; the statuses of those that are answered."""
    answered: list[int] = []

    async def ask(client: httpx.AsyncClient) -> None:
        reply = await client.post("/v1/chat/completions", json=ASKED, headers=headers)
        answered.append(reply.status_code)

    async with client_at(BATCH_ADDRESS, served) as client, asyncio.TaskGroup() as tasks:
        for _ in range(requests):
            tasks.create_task(ask(client))
        await world.until(lambda: world.seen().waiting > 0 and world.seen().running == 2)
        yield answered


async def test_a_chat_is_served_in_its_turn_while_five_hundred_requests_wait(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(max_waiting=BATCH) as world, serving(world.fleet) as served:
        world.order(token_s=0.01)
        await world.served_by()
        async with crowd(world, served, requests=BATCH) as answered:
            await world.until(lambda: world.seen().waiting + len(answered) > BATCH - 10)
            before = len(answered)
            async with client_at(CHAT_ADDRESS, served) as client:
                chat = await client.post("/v1/chat/completions", json=ASKED)
            after = len(answered)

    assert chat.status_code == 200
    assert after - before < 20  # its turn came after one of theirs, and those of two slots
    assert answered.count(200) == BATCH


async def test_a_line_filled_by_one_caller_has_a_place_for_another(fleet_world: MakeWorld) -> None:
    async with fleet_world(max_waiting=5) as world, serving(world.fleet) as served:
        world.order(token_s=0.8)
        await world.served_by()
        async with crowd(world, served, requests=7) as answered:
            await world.until(lambda: world.seen().waiting == 5)
            async with client_at(CHAT_ADDRESS, served) as client:
                chat = await client.post("/v1/chat/completions", json=ASKED)

    assert chat.status_code == 200
    assert sorted(answered) == [200] * 6 + [503]


async def test_callers_of_low_priority_are_served_too(fleet_world: MakeWorld) -> None:
    rules = callers_of(
        [CallerRule(BATCH_ADDRESS, Priority.HIGH), CallerRule(CHAT_ADDRESS, Priority.LOW)]
    )
    async with (
        fleet_world(max_waiting=BATCH, callers=rules) as world,
        serving(world.fleet) as served,
    ):
        world.order(token_s=0.01)
        await world.served_by()
        async with crowd(world, served, requests=BATCH) as answered:
            async with client_at(CHAT_ADDRESS, served) as client:
                low = await client.post("/v1/chat/completions", json=ASKED)
            before_the_end = len(answered)

    assert low.status_code == 200
    assert before_the_end < BATCH // 2


async def test_a_full_line_says_how_many_wait_and_when_to_come_back(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(max_waiting=2) as world, serving(world.fleet) as served:
        world.order(token_s=0.3)
        await world.served_by()
        async with crowd(world, served, requests=4):
            await world.until(lambda: world.seen().waiting == 2)
            async with client_at(BATCH_ADDRESS, served) as client:
                full = await client.post("/api/chat", json=ASKED)
            (line,) = world.fleet.lines()

    assert full.status_code == 503
    assert full.json()["waiting"] == 2
    assert int(full.headers["retry-after"]) >= 1
    assert (line.model_id, line.callers[0].caller) == (TINY, BATCH_ADDRESS)


async def test_a_batch_lets_the_chats_of_its_own_caller_go_first(fleet_world: MakeWorld) -> None:
    async with fleet_world(max_waiting=BATCH) as world, serving(world.fleet) as served:
        world.order(token_s=0.02)
        await world.served_by()
        async with crowd(world, served, requests=100, headers={"X-Priority": "low"}) as answered:
            async with client_at(BATCH_ADDRESS, served) as client:
                own = {"X-Priority": "high"}  # it can only lower what the caller has
                chat = await client.post("/v1/chat/completions", json=ASKED, headers=own)
            before_the_end = len(answered)
            ranks = {caller.priority for line in world.fleet.lines() for caller in line.callers}

    assert chat.status_code == 200
    assert before_the_end < 50
    assert ranks == {Priority.LOW}
