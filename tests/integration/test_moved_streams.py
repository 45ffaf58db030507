"""Each row of what becomes of a reply whose model moves, on the real engine: one reply."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from tests.fakes.chat_templates import with_template
from tests.fakes.forms import BEGINNING, CHAT, FORMS, OF_A_TEMPLATE, RAW, TEXT, heard
from tests.fakes.processes import standing_still
from tests.fakes.real_engine import quickstart_model
from tests.fakes.waiting import until

WITHIN_S = 120.0
ROOM_MIB, ROOM_FOR_VECTORS_MIB = 340, 800  # for one launch of a model, and not for two
BEGUN = 3  # lines of a reply that its caller has before its model moves
ON_CPU = {"GGML_VK_VISIBLE_DEVICES": ""}
PLAIN = "plain"
TEMPLATES = {form: template for form, (template, _, _) in OF_A_TEMPLATE.items()}
ASKED = {
    **{form: (PLAIN, route, body) for form, (route, body) in FORMS.items()},
    **{form: (form, route, body) for form, (_, route, body) in OF_A_TEMPLATE.items()},
}
SAMPLED = {"chat, sampled by a seed", "two choices"}
"""Go on in words of their own: what chance had drawn is known to nobody."""
WAYS = {"continue", "replay", "finish", "resend"}


def config(limit_mib: int) -> str:
    """One thread: two would wait for each other wherever something else runs as well."""
    names = (PLAIN, *TEMPLATES)
    rules = (f'[[model]]\nname = "{name}"\nflags = ["--threads", "1"]\n' for name in names)
    models = "[models]\ncontext = 1024\nparallel = 1\nkeep_conversations = false\n"
    return f'{models}[memory]\nlimit = "{limit_mib}MiB"\n{"".join(rules)}'


@pytest.fixture(scope="module")
def moving() -> Iterator[StartedDaemon]:
    """A daemon with room for one launch: who moves is cut before the next one loads."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        models = Path(folder) / "models"
        models.mkdir()
        (models / f"{PLAIN}.gguf").symlink_to(quickstart_model())
        for name, template in TEMPLATES.items():
            with_template(quickstart_model(), template, models / f"{name}.gguf")
        with started_daemon(
            Path(folder), model_dirs=[models], config=config(ROOM_MIB), environ=ON_CPU
        ) as daemon:
            daemon.wait_for_engines()
            yield daemon


def set_limit(daemon: StartedDaemon, mib: int) -> None:
    (daemon.folder / "config.toml").write_text(config(mib))
    assert daemon.ctl("reload").returncode == 0


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def admin(daemon: StartedDaemon, method: str, path: str, asked: Any = None) -> Any:
    transport = httpx.HTTPTransport(uds=str(daemon.admin_socket))
    with httpx.Client(transport=transport, base_url="http://admin", timeout=WITHIN_S) as client:
        reply = client.request(method, path, json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()


def told(daemon: StartedDaemon, kind: str, *, since: float) -> list[dict[str, Any]]:
    found = admin(daemon, "GET", "/events?limit=1000")["events"]
    return [e for e in found if e["kind"] == kind and e["at"] >= since]


def unload(daemon: StartedDaemon) -> None:
    """So that no prompt is found cached: on one that is, a greedy text may be another."""
    for instance in daemon.status()["instances"]:
        admin(daemon, "POST", "/unload", {"model": instance["model"]})
    until(lambda: not daemon.status()["instances"], within_s=WITHIN_S)


def whole(
    daemon: StartedDaemon,
    model: str,
    route: str,
    body: dict[str, Any],
    on_begun: Callable[[], None] = lambda: None,
) -> str:
    """The reply, line by line; `on_begun` is called once it has begun."""
    lines: list[str] = []
    n_told = 0
    asked = {"model": model, **body, "stream": True}
    with (
        httpx.Client(base_url=daemon.base, timeout=WITHIN_S, trust_env=False) as client,
        client.stream("POST", route, json=asked) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            lines.append(line)
            if line.startswith(("data: ", "{")):
                n_told += 1
                if n_told == BEGUN:
                    on_begun()
    return "\n".join(line for line in lines if not line.startswith(": "))


def only_child(daemon: StartedDaemon) -> psutil.Process:
    """The one llama-server, by what the daemon has started: asking it would take its time."""
    started = psutil.Process(daemon.process.pid).children()
    (child,) = (process for process in started if process.name() == "llama-server")
    return child


@contextmanager
def begun(
    daemon: StartedDaemon, threads: ThreadPoolExecutor, model: str, route: str, body: dict[str, Any]
) -> Iterator[Future[str]]:
    """A reply of which its caller has the first lines: from there on its child stands still.

    Whoever reads it halts the child: by the time that another thread did, it might have ended.
    """
    halted: Future[psutil.Process] = Future()

    def halt() -> None:
        child = only_child(daemon)
        child.suspend()
        halted.set_result(child)

    stream = threads.submit(whole, daemon, model, route, body, halt)
    with standing_still(halted.result(WITHIN_S)):
        yield stream


def move(daemon: StartedDaemon, threads: ThreadPoolExecutor, model: str) -> Future[Any]:
    """Has the model move to another context, and returns once that has begun."""
    (instance,) = daemon.status()["instances"]
    context = 2304 - instance["context"]  # 1024 and 1280 in turn
    asked = {"model": model, "context": context}
    moved = threads.submit(admin, daemon, "POST", "/migrate", asked)
    until(lambda: daemon.status()["migrations"] or moved.done(), within_s=WITHIN_S)
    return moved


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ASKED)
def test_a_stream_whose_model_moves_is_the_one_that_a_child_alone_writes(
    moving: StartedDaemon, threads: ThreadPoolExecutor, form: str
) -> None:
    model, route, body = ASKED[form]
    unload(moving)
    alone = heard(route, whole(moving, model, route, body))
    unload(moving)
    since = time.time()

    with begun(moving, threads, model, route, body) as stream:
        moved = move(moving, threads, model)
    found = heard(route, stream.result(WITHIN_S))

    assert moved.result(WITHIN_S)["streams"] == 1
    assert found.keys() == alone.keys()
    if form in SAMPLED:
        assert found["done"]
        assert found["why"].keys() == alone["why"].keys()
        assert found["usage"].prompt_tokens == alone["usage"].prompt_tokens
    else:
        assert found == alone
    ways = {event["facts"]["way"] for event in told(moving, "stream.resumed", since=since)}
    assert ways
    assert ways <= WAYS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("route", "body", "way"),
    [
        ("/completion", RAW, "continue"),
        ("/v1/completions", TEXT, "continue"),
        ("/v1/chat/completions", CHAT, "replay"),
    ],
    ids=["a completion", "a text", "a chat"],
)
def test_text_that_reads_as_other_tokens_than_it_was_written_in_is_the_same(
    moving: StartedDaemon, threads: ThreadPoolExecutor, route: str, body: dict[str, Any], way: str
) -> None:
    """As of one that repeats: many tokens of a letter each read as few of many letters.

    What is asked for by its prompt goes on in its own tokens; a chat is asked for by its text.
    """
    body = {**body, "logit_bias": [["a", 100]]}
    unload(moving)
    alone = heard(route, whole(moving, PLAIN, route, body))
    since = time.time()

    with begun(moving, threads, PLAIN, route, body) as stream:
        moved = move(moving, threads, PLAIN)
    found = heard(route, stream.result(WITHIN_S))

    assert moved.result(WITHIN_S)["slots"] == 1
    assert found == alone
    assert "aaaa" in found["texts"][0, "content"]
    (resumed,) = told(moving, "stream.resumed", since=since)
    assert resumed["facts"]["way"] == way


WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "seed": 7},
    ),
    "two choices": ("/v1/completions", {"prompt": BEGINNING, "max_tokens": 4, "n": 2, "seed": 7}),
    "Ollama's generate": (
        "/api/generate",
        {"prompt": "Say hello.", "stream": False, "options": {"num_predict": 8, "seed": 7}},
    ),
    "vectors": ("/v1/embeddings", {"input": "a text"}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["moves", "is killed"])
@pytest.mark.parametrize("form", WHOLE)
def test_a_reply_that_is_not_streamed_is_asked_for_again(
    moving: StartedDaemon, threads: ThreadPoolExecutor, form: str, fault: str
) -> None:
    route, body = WHOLE[form]
    asked = {"model": PLAIN, **body}

    def ask() -> Any:
        reply = httpx.post(moving.base + route, json=asked, timeout=WITHIN_S, trust_env=False)
        assert reply.status_code == 200, reply.text
        return text_of(reply.json())

    unload(moving)
    set_limit(moving, ROOM_FOR_VECTORS_MIB if form == "vectors" else ROOM_MIB)
    alone = ask()
    if form != "vectors":
        unload(moving)
        ask()
    (instance,) = moving.status()["instances"]

    with standing_still(only_child(moving)) as child:
        reply = threads.submit(ask)
        until(
            lambda: any(seen["running"] for seen in moving.status()["instances"]),
            within_s=WITHIN_S,
        )
        if fault == "moves":
            moved = move(moving, threads, instance["model"])
        else:
            child.kill()

    assert reply.result(WITHIN_S) == alone
    if fault == "moves":
        assert moved.result(WITHIN_S)


def text_of(reply: dict[str, Any]) -> Any:
    """What of a reply is not decided by chance."""
    if "data" in reply:
        return reply["data"]
    if "choices" in reply:
        return [choice.get("text") or choice.get("message") for choice in reply["choices"]]
    return json.dumps(reply["response"])
