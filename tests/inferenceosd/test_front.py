"""inferenceosd.front: who waits for the first look at the models."""

import asyncio

from inferenceosd.front import Front
from proxy.exchange import Receive, Scope, Send


class Answered:
    """An application that notes what it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])


async def receive() -> dict[str, object]:
    return {}


async def send(message: object) -> None:
    pass


async def asked(front: Front, path: str) -> None:
    await front({"type": "http", "path": path}, receive, send)


async def test_until_the_models_were_looked_at_only_questions_about_the_daemon_are_answered() -> (
    None
):
    app = Answered()
    front = Front(app, parting=Answered())

    async with asyncio.TaskGroup() as callers:
        for path in ("/v1/models", "/api/chat"):
            callers.create_task(asked(front, path))
        await asyncio.sleep(0)  # they are in line
        for path in ("/health", "/api/version", "/"):
            await asked(front, path)
        before = [*app.paths]
        front.has_looked.set()

    assert before == ["/health", "/api/version", "/"]
    assert app.paths[3:] == ["/v1/models", "/api/chat"]


async def test_who_waited_is_served_by_the_settings_that_came_meanwhile() -> None:
    old, new = Answered(), Answered()
    front = Front(old, parting=Answered())

    async with asyncio.TaskGroup() as callers:
        callers.create_task(asked(front, "/v1/models"))
        await asyncio.sleep(0)
        front.app = new
        front.has_looked.set()

    assert (old.paths, new.paths) == ([], ["/v1/models"])


async def test_who_waits_for_a_look_that_the_end_forestalls_is_told_of_the_end() -> None:
    app, parting = Answered(), Answered()
    front = Front(app, parting=parting)

    async with asyncio.TaskGroup() as callers:
        callers.create_task(asked(front, "/v1/models"))
        await asyncio.sleep(0)
        front.part()
    await asked(front, "/health")

    assert (app.paths, parting.paths) == ([], ["/v1/models", "/health"])
