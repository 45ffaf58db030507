"""`python -m bench.relay.leaving`: how soon a caller who leaves has freed its slot, real engine.

Looked at from outside: the child's own /slots, asked over its socket until none computes.
"""

import argparse
import json
import random
import socket
import time
from statistics import median

import httpx

from bench.quickstart import loaded, quickstart_daemon
from bench.relay.cases import CHAT, request
from scripts.started_daemon import StartedDaemon

PREFILL_WORDS = 1500  # some 2,000 tokens
INTO_S = 0.4  # of the work when the caller leaves
LOOK_S = 0.002
WITHIN_S = 30.0
WORDS = ("stone", "river", "lamp", "green", "seven", "cloud", "paper", "north")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.relay.leaving", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (1)")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with quickstart_daemon() as (daemon, model):
        for name, words in (("decode", 1), ("prefill", PREFILL_WORDS)):
            for stream in (True, False):
                took = [
                    _freed_s(daemon, model, " ".join(chance.choices(WORDS, k=words)), stream)
                    for _ in range(asked.times)
                ]
                kind = "stream" if stream else "whole"
                print(f"{name:8}{kind:8}median {median(took):.3f} s  worst {max(took):.3f} s")


def _freed_s(daemon: StartedDaemon, model: str, prompt: str, stream: bool) -> float:
    """Seconds from a caller's leaving until its slot computes no more."""
    transport = httpx.HTTPTransport(uds=loaded(daemon, model)[1])
    body = {"messages": [{"role": "user", "content": prompt}], "stream": stream}
    host, _, port = daemon.listen.rpartition(":")
    with httpx.Client(transport=transport, base_url="http://child") as child:
        caller = socket.create_connection((host, int(port)))
        caller.sendall(request(CHAT, model, {**body, "max_tokens": 400, "ignore_eos": True}))
        time.sleep(INTO_S)
        assert _is_busy(child), "the request was over before its caller left"
        caller.close()
        began_s = time.monotonic()
        while _is_busy(child):
            assert time.monotonic() - began_s < WITHIN_S
            time.sleep(LOOK_S)
        return time.monotonic() - began_s


def _is_busy(child: httpx.Client) -> bool:
    return any(slot["is_processing"] for slot in json.loads(child.get("/slots").text))


if __name__ == "__main__":
    main()
