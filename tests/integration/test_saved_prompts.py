"""What an idle model lets go of first, on the real engine: prompts that it has saved in memory."""

import json

import httpx
import psutil

from scripts.started_daemon import StartedDaemon
from tests.fakes.waiting import until
from tests.integration.conftest import Start

WITHIN_S = 120.0
CONFIG = "[models]\ncontext = 1024\nparallel = 1\n"
SAID = "The harbour has four piers, and each of them has a colour of its own. " * 8


def cache_ram_mib(daemon: StartedDaemon) -> int | None:
    """Of the one process that serves; None while another one is on its way."""
    found = daemon.status()["instances"]
    if len(found) != 1 or found[0]["state"] != "ready":
        return None
    argv = psutil.Process(found[0]["pid"]).cmdline()
    return int(argv[argv.index("--cache-ram") + 1])


def cached_tokens(daemon: StartedDaemon, model: str) -> int:
    """How much of a conversation's prompt was found."""
    body = {"model": model, "messages": [{"role": "user", "content": SAID}], "max_tokens": 4}
    url = f"{daemon.base}/v1/chat/completions"
    reply = httpx.post(url, json=body, timeout=WITHIN_S, trust_env=False).json()
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_an_idle_model_is_launched_without_saved_prompts_where_that_is_enough(
    start: Start,
) -> None:
    daemon = start(config=CONFIG, environ={"GGML_VK_VISIBLE_DEVICES": ""})
    model = json.loads(daemon.ctl("models", "--json").stdout)["models"][0]["model"]
    (host,) = json.loads(daemon.ctl("plan", model, "--json").stdout)["places"]
    cached_tokens(daemon, model)
    before = cache_ram_mib(daemon)
    assert before
    limit_bytes = host["total_bytes"] - (before << 20) // 2

    (daemon.folder / "config.toml").write_text(f"{CONFIG}[memory]\nlimit = {limit_bytes}\n")
    assert daemon.ctl("reload").returncode == 0

    until(lambda: cache_ram_mib(daemon) == 0, within_s=WITHIN_S, told=lambda: daemon.log()[-3000:])
    assert cached_tokens(daemon, model) > 80
