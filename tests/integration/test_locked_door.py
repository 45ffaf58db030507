"""The daemon behind its lock: keys, TLS, and what it refuses."""

import json
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.started_daemon import StartedDaemon
from tests.fakes.certificates import certificate
from tests.fakes.waiting import until

MODEL = "SmolLM2-135M-Instruct.Q4_1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
SOON_S = 30.0


def chat(daemon: StartedDaemon, key: str | None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"{daemon.base}/v1/chat/completions"
    return httpx.post(url, json=CHAT, headers=headers, timeout=60, trust_env=False)


def events(daemon: StartedDaemon, name: str) -> Iterator[Any]:
    for line in daemon.log().splitlines():
        if line.startswith("{") and json.loads(line)["event"] == name:
            yield json.loads(line)


def test_a_key_made_while_it_runs_locks_it_at_once_and_a_revoked_one_opens_nothing(
    start: Any,
) -> None:
    daemon = start()
    open_ = chat(daemon, None)

    key = daemon.ctl("key", "add", "laptop").stdout.strip()
    other = daemon.ctl("key", "add", "other").stdout.strip()
    without, with_key = chat(daemon, None), chat(daemon, key)
    key_id = key.split("-")[2]
    revoked = daemon.ctl("key", "revoke", key_id)
    after, others = chat(daemon, key), chat(daemon, other)

    assert [open_.status_code, without.status_code, with_key.status_code] == [200, 401, 200]
    assert revoked.returncode == 0
    assert [after.status_code, others.status_code] == [401, 200]
    assert key_id in {line["caller"] for line in events(daemon, "request.served")}
    assert key not in daemon.log()
    assert "locked: callers need an API key (keys: 1)" in daemon.ctl("status").stdout


def test_keys_that_come_and_go_hold_for_callers_who_are_connected_already(start: Any) -> None:
    daemon = start()
    stays = httpx.Limits(keepalive_expiry=SOON_S)
    with httpx.Client(base_url=daemon.base, limits=stays, trust_env=False) as caller:

        def asked(key: str | None) -> tuple[int, object]:
            headers = {} if key is None else {"x-api-key": key}
            reply = caller.get("/v1/models", headers=headers, timeout=SOON_S)
            return reply.status_code, reply.extensions["network_stream"].get_extra_info(
                "client_addr"
            )

        told = [asked(None), asked(None)]
        key = daemon.ctl("key", "add", "laptop").stdout.strip()
        daemon.ctl("key", "add", "other")
        told += [asked(None), asked(key), asked(key)]
        daemon.ctl("key", "revoke", key.split("-")[2])
        told += [asked(key)]

    assert [status for status, _ in told] == [200, 200, 401, 200, 200, 401]
    assert len({address for _, address in told}) == 1


def test_a_file_of_keys_that_was_changed_by_hand_is_gone_by_soon(start: Any) -> None:
    daemon = start()
    daemon.ctl("key", "add", "laptop")
    file = daemon.folder / "state" / "keys.json"

    file.chmod(0o644)
    until(lambda: list(events(daemon, "lock.refused")), within_s=SOON_S)
    refused = chat(daemon, None)
    file.chmod(0o600)
    file.write_text('{"keys": []}')
    until(lambda: daemon.status()["daemon"]["lock"]["keys"] == 0, within_s=SOON_S)

    assert refused.status_code == 401
    assert chat(daemon, None).status_code == 200


def test_a_reload_after_which_it_would_not_start_is_refused_and_it_serves_on(start: Any) -> None:
    daemon = start()
    (daemon.folder / "config.toml").write_text('[server]\ntls_cert = "no.pem"\ntls_key = "no.key"')

    refused = daemon.ctl("reload")

    assert refused.returncode == 1
    assert "no.pem: No such file" in refused.stderr
    assert chat(daemon, None).status_code == 200


@pytest.mark.parametrize("how", ["SIGHUP", "by itself"])
def test_a_renewed_certificate_is_served_without_a_stop(
    start: Any, tmp_path: Path, how: str
) -> None:
    old, key = certificate(tmp_path, "old", days=2)
    new, new_key = certificate(tmp_path, "new", days=90)
    trust = ssl.create_default_context()
    trust.load_verify_locations(old)
    trust.load_verify_locations(new)
    daemon = start(config=f'[server]\ntls_cert = "{old}"\ntls_key = "{key}"')
    url = f"https://{daemon.listen}/v1/chat/completions"
    before = daemon.status()["daemon"]["lock"]["tls_expires_at"]
    with httpx.Client(verify=trust, trust_env=False, timeout=60) as client:
        told = {**CHAT, "stream": True, "max_tokens": 4000, "ignore_eos": True}
        with client.stream("POST", url, json=told) as reply:
            lines = reply.iter_lines()
            next(lines)
            os.replace(new, old)
            os.replace(new_key, key)
            if how == "SIGHUP":
                daemon.process.send_signal(signal.SIGHUP)
            until(
                lambda: daemon.status()["daemon"]["lock"]["tls_expires_at"] > before,
                within_s=SOON_S,
            )
            next(lines)

        assert reply.status_code == 200
        assert client.post(url, json=CHAT).status_code == 200
    assert daemon.process.poll() is None
