"""Several callers with several wishes, through the daemon, on the real engine and model."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx

from scripts.started_daemon import StartedDaemon

MODEL = "SmolLM2-135M-Instruct.Q4_1"
GREEDY = {"temperature": 0, "num_predict": 8}


def chat(
    daemon: StartedDaemon, model: str = MODEL, *, num_ctx: int | None = None
) -> httpx.Response:
    told = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": False,
        "options": {**GREEDY, "num_ctx": num_ctx},
    }
    return httpx.post(f"{daemon.base}/api/chat", json=told, timeout=120, trust_env=False)


def loads(daemon: StartedDaemon) -> int:
    return daemon.log().count("instance.started")


def loaded(daemon: StartedDaemon) -> list[dict[str, Any]]:
    """What /api/ps shows."""
    models: list[dict[str, Any]] = httpx.get(f"{daemon.base}/api/ps", trust_env=False).json()[
        "models"
    ]
    return models


def test_sizes_of_context_in_turn_cost_one_launch_more_and_ps_shows_the_one_in_force(
    start: Any,
) -> None:
    daemon = start(config="[models]\ncontext = 2048\n")
    sizes = islice(cycle((2048, 4096, None)), 12)

    answers = {chat(daemon, num_ctx=size).json()["message"]["content"] for size in sizes}

    assert len(answers) == 1
    assert loads(daemon) == 2
    assert [model["context_length"] for model in loaded(daemon)] == [4096]


def test_a_stream_is_whole_though_a_larger_context_is_asked_for_in_its_middle(start: Any) -> None:
    daemon = start(config="[models]\ncontext = 2048\n[fleet]\nfinish_timeout = 0\n")
    told = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Write a long story."}],
        "options": {"temperature": 0, "num_predict": 200},
    }

    def story() -> str:
        with httpx.stream(
            "POST", f"{daemon.base}/api/chat", json=told, timeout=120, trust_env=False
        ) as reply:
            lines = reply.iter_lines()
            text = [next(lines)]
            larger = pool.submit(chat, daemon, num_ctx=4096)
            text += lines
        assert larger.result().status_code == 200
        parts = [json.loads(line) for line in text]
        assert parts[-1]["done"]
        return "".join(part["message"]["content"] for part in parts)

    with ThreadPoolExecutor(2) as pool:
        broken_in_on, alone = story(), story()

    assert broken_in_on == alone
    assert loads(daemon) == 2


def test_a_reply_that_fills_its_context_leaves_its_neighbours_alone(start: Any) -> None:
    daemon = start(config="[models]\ncontext = 256\nparallel = 2\n")

    def told(prompt: str, *, most: int) -> Any:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": most}
        reply = httpx.post(
            f"{daemon.base}/v1/completions",
            json={**body, "temperature": 0, "ignore_eos": True},
            timeout=120,
            trust_env=False,
        ).json()
        return reply["choices"][0]

    alone = told("Once upon a time", most=120)
    with ThreadPoolExecutor(2) as pool:
        filling = pool.submit(told, "word " * 180, most=1000)
        beside = pool.submit(told, "Once upon a time", most=120)

    assert filling.result()["finish_reason"] == "length"
    assert beside.result() == alone
    assert loads(daemon) == 1


def test_callers_of_two_models_that_do_not_fit_together_cost_two_loads(
    start: Any, model_dir: Path
) -> None:
    (path,) = model_dir.glob(f"{MODEL}.gguf")
    rule = '[[model]]\nname = "{}"\npath = "{}"\ncontext = {}\n'
    rules = rule.format("a", path, 2048) + rule.format("b", path, 4096)
    daemon = start(config=f"[models]\nmax_loaded = 1\n{rules}", model_dirs=())

    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda name: chat(daemon, name), islice(cycle("ab"), 6)))

    assert [reply.status_code for reply in replies] == [200] * 6
    assert len({reply.json()["message"]["content"] for reply in replies}) == 1
    assert loads(daemon) == 2


def test_models_of_a_group_take_each_others_place_and_no_caller_is_lost(
    start: Any, model_dir: Path
) -> None:
    (path,) = model_dir.glob(f"{MODEL}.gguf")
    rule = '[[model]]\nname = "{}"\npath = "{}"\ncontext = {}\n'
    rules = rule.format("a", path, 1024) + rule.format("b", path, 2048)
    group = '[[group]]\nname = "one"\nmodels = ["a", "b"]\n'
    daemon = start(config=f"[fleet]\nturn = '1s'\n{rules}{group}", model_dirs=())
    seen: list[list[str]] = []

    def ask(name: str) -> httpx.Response:
        reply = chat(daemon, name)
        seen.append([i["model"] for i in daemon.status()["instances"] if i["state"] == "ready"])
        return reply

    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(ask, islice(cycle("ab"), 8)))

    assert [reply.status_code for reply in replies] == [200] * 8
    assert len({reply.json()["message"]["content"] for reply in replies}) == 1
    assert all(len(ready) <= 1 for ready in seen)
    told = json.loads(daemon.ctl("events", "--json").stdout)["events"]
    reasons = [event["reason"] for event in told if event["kind"].startswith("instance.")]
    assert any("group 'one' runs one model at a time" in reason for reason in reasons)
