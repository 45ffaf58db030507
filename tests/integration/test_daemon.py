"""The daemon's life: start, signals, reload, ports, devices. What an operator sees."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from proxy.app import ROUTES
from scripts.started_daemon import DaemonTrouble, StartedDaemon, started_daemon
from supervisor.children.leftovers import MARK, mark_of
from tests.fakes.processes import is_gone
from tests.fakes.waiting import until

MODEL = "SmolLM2-135M-Instruct.Q4_1"
ANSWER_S = 180.0  # a software Vulkan driver first compiles its shaders


def chat(daemon: StartedDaemon, text: str = "Say hello.", **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": False}
    body["options"] = {"num_predict": 8, "temperature": 0}
    url = f"{daemon.base}/api/chat"
    return httpx.post(url, json={**body, **more}, timeout=ANSWER_S, trust_env=False)


def streamed(
    daemon: StartedDaemon, path: str, **body: Any
) -> AbstractContextManager[httpx.Response]:
    """A reply whose lines are read as they come."""
    told = {"model": MODEL, "stream": True, **body}
    return httpx.stream("POST", daemon.base + path, json=told, timeout=60, trust_env=False)


def only_instance(daemon: StartedDaemon) -> Any:
    (instance,) = daemon.status()["instances"]
    return instance


def end(daemon: StartedDaemon) -> float:
    """SIGTERM it; how long it took to end, in seconds."""
    began_s = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    return time.monotonic() - began_s


def test_sigterm_ends_the_daemon_and_every_child_within_five_seconds(start: Any) -> None:
    daemon = start()
    chat(daemon)
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    assert children

    assert end(daemon) < 5

    assert not [child for child in children if child.is_running()]
    assert not list((daemon.folder / "run").iterdir())


STORY = {"prompt": "Tell a story."}
TOLD = {"messages": [{"role": "user", "content": "Tell a story."}]}
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 400}
OLLAMA_ENDLESS = {"format": NUMBERS, "options": {"num_predict": 4000}}
"""Ollama's callers cannot forbid a model to end; a form that is long of itself does."""
BOUND = "inferenceosd is stopping"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {**STORY, **ENDLESS}),
        ("/v1/chat/completions", {**TOLD, **ENDLESS}),
        ("/api/generate", {**STORY, "raw": True, **OLLAMA_ENDLESS}),
        ("/api/chat", {**TOLD, **OLLAMA_ENDLESS}),
    ],
)
def test_sigterm_in_mid_stream_ends_the_stream_with_an_error_of_its_dialect_within_five_seconds(
    start: Any, path: str, asked: dict[str, Any]
) -> None:
    daemon = start(config="[fleet]\ndrain_timeout = '0s'\n")
    with streamed(daemon, path, **asked) as reply:
        lines = reply.iter_lines()
        next(lines)
        took_s = end(daemon)
        *_, last = filter(None, lines)

    assert took_s < 5
    error = json.loads(last.removeprefix("data: "))["error"]
    assert BOUND in (error["message"] if path.startswith("/v1") else error)


def test_a_child_that_is_stopped_is_replaced_and_who_asked_meanwhile_is_served(
    start: Any,
) -> None:
    daemon = start(config="[fleet]\nhang_timeout = '10s'\n")
    first = chat(daemon).json()
    child = only_instance(daemon)["pid"]

    os.kill(child, signal.SIGSTOP)
    second = chat(daemon)

    assert second.status_code == 200
    assert second.json()["message"] == first["message"]
    assert is_gone(child)
    events = daemon.ctl("events").stdout
    assert "instance.hung" in events
    assert "it is stopped" in events


def test_kill_9_of_the_child_between_two_requests_is_invisible_to_the_second(start: Any) -> None:
    daemon = start()
    first = chat(daemon).json()
    child = only_instance(daemon)["pid"]

    os.kill(child, signal.SIGKILL)
    second = chat(daemon)

    assert second.status_code == 200
    assert second.json()["message"] == first["message"]
    assert only_instance(daemon)["pid"] != child


def test_kill_9_of_the_daemon_takes_its_children_along(start: Any) -> None:
    daemon = start()
    chat(daemon)
    child = psutil.Process(only_instance(daemon)["pid"])

    daemon.process.kill()
    daemon.process.wait()

    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_after_kill_9_the_next_daemon_starts_in_the_same_folder(start: Any) -> None:
    daemon = start()
    chat(daemon)
    daemon.process.kill()
    daemon.process.wait()

    argv = [*daemon.process.args, "--log-format", "json"]
    environ = {**os.environ, "INFERENCEOSD_RUNTIME_DIR": str(daemon.folder / "run")}
    with subprocess.Popen(argv, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            again = StartedDaemon(process, daemon.folder)
            again.wait_for_engines()
            answered = chat(again).status_code
        finally:
            process.terminate()

    assert answered == 200


def test_kill_9_in_mid_trial_leaves_nothing_that_the_next_daemon_does_not_clear(
    model_dir: Path,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ios-") as name:
        folder = Path(name)
        trial = folder / "trial"
        engine = folder / "llama-server"
        engine.write_text(
            f"#!/bin/sh\npwd > {trial}.new && mv {trial}.new {trial}\nexec sleep 60\n"
        )
        engine.chmod(0o755)
        (folder / "tmp").mkdir()
        config = f'[backends.slow]\npath = "{engine}"\n'
        environ = {"TMPDIR": str(folder / "tmp")}

        def left_by_a_killed_daemon() -> Path:
            trial.unlink(missing_ok=True)
            with started_daemon(
                folder, model_dirs=[model_dir], config=config, environ=environ
            ) as daemon:
                until(trial.exists, within_s=30)
                daemon.process.kill()
            return Path(trial.read_text().strip())

        first = left_by_a_killed_daemon()
        assert first.is_relative_to(folder / "run")
        assert first.exists()
        left_by_a_killed_daemon()

        assert not first.parent.exists()
        assert list((folder / "tmp").iterdir()) == []


def test_what_a_killed_daemon_left_is_ended_by_the_next_and_a_strangers_is_not(
    start: Any, tmp_path: Path
) -> None:
    marked = {**os.environ, MARK: mark_of(tmp_path)}
    with (
        subprocess.Popen(["sleep", "60"], env=marked, start_new_session=True) as leftover,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger,
    ):
        daemon = start(options=["--state-dir", str(tmp_path)])

        assert leftover.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()
    assert f"process {leftover.pid}" in daemon.ctl("events").stdout


def test_every_child_carries_the_mark_by_which_the_next_daemon_would_find_it(start: Any) -> None:
    daemon = start()
    chat(daemon)

    child = psutil.Process(only_instance(daemon)["pid"])

    assert child.environ()[MARK] == mark_of(daemon.folder / "state")
    assert os.getsid(child.pid) == child.pid


def test_an_admin_socket_that_somebody_removed_is_there_again(start: Any) -> None:
    daemon = start()
    daemon.admin_socket.unlink()

    deadline_s = time.monotonic() + 10
    while (told := daemon.ctl("status")).returncode:
        assert time.monotonic() < deadline_s, told.stderr
        time.sleep(0.05)

    assert daemon.admin_socket.stat().st_mode & 0o777 == 0o600
    assert end(daemon) < 5
    assert not daemon.admin_socket.exists()


def test_a_taken_port_is_one_line_that_names_the_holder_and_the_option(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(DaemonTrouble) as trouble:
            start(options=["--listen", f"127.0.0.1:{port}"])

    (line,) = str(trouble.value).splitlines()[1:]
    assert f"127.0.0.1:{port} is held by" in line
    assert f"(pid {os.getpid()})" in line
    assert "--listen" in line


def test_a_second_daemon_on_the_same_state_folder_names_the_first(start: Any) -> None:
    first = start()

    with pytest.raises(DaemonTrouble, match=f"another inferenceosd \\(pid {first.process.pid}\\)"):
        start(options=["--state-dir", str(first.folder / "state")])


def test_reload_keeps_the_pid_and_the_stream_of_an_unchanged_model(start: Any) -> None:
    daemon = start(config="[models]\nkeep_alive = '5m'\n")
    options = {"num_predict": 200}
    asked = {"prompt": "Count to fifty.", "format": NUMBERS, "options": options}
    with streamed(daemon, "/api/generate", **asked) as reply:
        lines = reply.iter_lines()
        next(lines)
        pid = only_instance(daemon)["pid"]

        (daemon.folder / "config.toml").write_text("[models]\nkeep_alive = '10m'\n")
        told = daemon.ctl("reload")
        rest = [json.loads(line) for line in lines]

    assert told.returncode == 0, told.stderr
    assert rest[-1]["done"]
    assert only_instance(daemon)["pid"] == pid


def test_a_reload_that_changes_nothing_says_nothing_of_a_launch_for_embeddings(start: Any) -> None:
    daemon = start()
    asked = {"model": MODEL, "input": "the sky"}
    url = f"{daemon.base}/v1/embeddings"
    assert httpx.post(url, json=asked, timeout=ANSWER_S, trust_env=False).status_code == 200
    pid = only_instance(daemon)["pid"]

    told = daemon.ctl("reload")

    assert told.returncode == 0, told.stderr
    assert f"{MODEL}+embeddings" not in told.stdout
    assert only_instance(daemon)["pid"] == pid


def test_a_broken_file_leaves_the_old_settings_in_force_and_says_where(start: Any) -> None:
    daemon = start()
    (daemon.folder / "config.toml").write_text("[server]\nlisten = '127.0.0.1:0'\nlissten = 1\n")

    told = daemon.ctl("reload")

    assert told.returncode == 1
    assert "config.toml:3" in told.stderr
    assert "did you mean listen" in told.stderr
    assert chat(daemon).status_code == 200


def test_sighup_reloads_too(start: Any) -> None:
    daemon = start()
    (daemon.folder / "config.toml").write_text(f"[[model]]\nname = '{MODEL}'\naliases = ['smol']\n")

    daemon.process.send_signal(signal.SIGHUP)

    deadline_s = time.monotonic() + 10
    while "smol" not in daemon.ctl("models", "--json").stdout:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert chat(daemon, model="smol").status_code == 200


def test_a_file_that_appears_is_offered_and_one_that_is_no_model_is_named(
    start: Any, model_dir: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    daemon = start(model_dirs=[models])

    (models / "new.gguf").symlink_to(model_dir / f"{MODEL}.gguf")
    (models / "pointer.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")

    deadline_s = time.monotonic() + 10
    while not (told := json.loads(daemon.ctl("models", "--json").stdout))["models"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert [m["model"] for m in told["models"]] == ["new"]
    assert "git-lfs" in told["broken"][0]["reason"]
    assert chat(daemon, model="new").status_code == 200


@pytest.mark.timeout(240)
def test_the_software_vulkan_device_is_used_where_the_operator_says_so(
    start: Any, vulkan_environ: dict[str, str]
) -> None:
    daemon = start(config='[devices."Vulkan0"]\nuse = true\n', environ=vulkan_environ)

    assert chat(daemon).status_code == 200

    instance = only_instance(daemon)
    assert [share["engine_name"] for share in instance["devices"]] == ["Vulkan0"]
    on_device = next(m for m in instance["memory"] if m["device"] != "host")
    assert on_device["measured_bytes"] == pytest.approx(on_device["predicted_bytes"], rel=0.2)


def test_a_device_limit_bounds_what_is_placed_on_it(
    start: Any, vulkan_environ: dict[str, str]
) -> None:
    config = '[devices."Vulkan0"]\nuse = true\nlimit = "120MiB"\nreserve = "0"\n'
    daemon = start(config=config, environ=vulkan_environ)

    told = daemon.ctl("plan", MODEL, "--json")

    plan = json.loads(told.stdout)["plan"]
    ours = sum(
        sum(v for k, v in part.items() if k.endswith("_bytes"))
        for part in plan["predicted"]
        if part["device_id"] != "host"
    )
    assert ours <= 120 << 20


def test_status_shows_what_runs(start: Any) -> None:
    daemon = start()
    chat(daemon, keep_alive=-1)

    told = daemon.ctl("status")

    assert told.returncode == 0
    for shown in (MODEL, "ready", str(only_instance(daemon)["pid"]), "forever"):
        assert shown in told.stdout


def test_events_tell_why_a_model_was_unloaded(start: Any) -> None:
    daemon = start()
    chat(daemon, keep_alive=0)
    deadline_s = time.monotonic() + 10
    while daemon.status()["instances"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)

    told = daemon.ctl("events", "--model", MODEL)

    assert "its keep_alive is 0s" in told.stdout


def test_inferenceosctl_without_a_daemon_says_so_in_one_sentence(tmp_path: Path) -> None:
    ctl = str(Path(sys.executable).with_name("inferenceosctl"))

    told = subprocess.run(
        [ctl, "--socket", str(tmp_path / "no.sock"), "status"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 1
    assert str(tmp_path / "no.sock") in told.stderr
    assert len(told.stderr.splitlines()) == 1


SECRET = "pangolin"


def _lines_of(daemon: StartedDaemon, request_id: str) -> list[str]:
    """What the log tells of a request, once it tells that it was served."""

    def told() -> list[str]:
        return [line for line in daemon.log().splitlines() if request_id in line]

    until(lambda: any("request.served" in line for line in told()), within_s=30)
    return told()


def test_a_request_to_any_route_is_at_most_three_lines_and_no_prompt_in_any_log(
    start: Any,
) -> None:
    daemon = start()
    daemon.ctl("load", MODEL)
    messages = [{"role": "user", "content": SECRET}]
    body = {"model": MODEL, "messages": messages, "prompt": SECRET, "input": SECRET}
    few: dict[str, Any] = {"options": {"num_predict": 4}}
    few |= dict.fromkeys(("max_tokens", "max_output_tokens", "n_predict"), 4)
    with httpx.Client(base_url=daemon.base, timeout=ANSWER_S, trust_env=False) as http:
        for path, methods in ROUTES.items():
            for method in methods:
                json_body = {**body, **few} if method == "POST" else None
                reply = http.request(method, path, json=json_body)
                request_id = reply.headers["x-request-id"]
                lines = _lines_of(daemon, request_id)
                assert len(lines) <= 3, (method, path, lines)
        bad = {**body, **few, "grammar": f"root ::= {SECRET} ("}
        http.post("/v1/chat/completions", json=bad)

    assert SECRET not in daemon.log()
    kept = [path.read_text() for path in (daemon.folder / "state" / "logs").iterdir()]
    assert any("print_timing" in text for text in kept)
    assert not any(SECRET in text for text in kept)


@contextmanager
def following_events(daemon: StartedDaemon) -> Iterator[subprocess.Popen[str]]:
    """`inferenceosctl events --follow`, which has read what there was."""
    program = Path(sys.executable).with_name("inferenceosctl")
    argv = [str(program), "--socket", str(daemon.admin_socket), "events", "--follow"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        yield running


def test_who_follows_a_daemon_that_stops_sees_every_child_end_and_is_told(start: Any) -> None:
    daemon = start(config='[fleet]\ndrain_timeout = "1s"\n')
    chat(daemon, keep_alive=-1)
    asked = {"prompt": "Count.", "max_tokens": 4000, "ignore_eos": True}
    with following_events(daemon) as following, streamed(daemon, "/v1/completions", **asked) as cut:
        lines = cut.iter_lines()
        assert next(lines)
        daemon.process.send_signal(signal.SIGTERM)
        assert "stopping" in "".join(lines)
        told, said = following.communicate(timeout=20)

    assert "daemon.stopped" in told.splitlines()[-1]
    assert "instance.stopped" in told
    assert (following.returncode, said) == (0, "inferenceosctl: the daemon stopped\n")


def test_who_follows_a_daemon_that_is_killed_is_told_that_it_broke_off(start: Any) -> None:
    daemon = start()
    with following_events(daemon) as following:
        daemon.process.kill()
        _, said = following.communicate(timeout=20)

    assert following.returncode == 1
    assert "broke off" in said


def test_a_log_is_followed_over_a_crash_and_kept_for_the_next_daemon(start: Any) -> None:
    daemon = start()
    chat(daemon, keep_alive=-1)
    ctl = [Path(sys.executable).with_name("inferenceosctl"), "--socket", daemon.admin_socket]
    with subprocess.Popen(
        [*ctl, "logs", MODEL, "-f"], stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline()
        psutil.Process(only_instance(daemon)["pid"]).kill()
        relaunched = next(line for line in following.stdout if "launch 2 of " in line)
        until(lambda: only_instance(daemon)["state"] == "ready", within_s=30)
        end(daemon)
        rest = following.stdout.read()

    assert relaunched.startswith("[inferenceosd: ")
    assert "model loaded" in rest
    assert following.returncode == 0


def test_what_a_launch_took_is_shown_beside_what_was_predicted(start: Any) -> None:
    daemon = start()
    for _ in range(2):
        daemon.ctl("load", MODEL)
        daemon.ctl("unload", MODEL)
        until(lambda: not daemon.status()["instances"], within_s=30)
    daemon.ctl("load", MODEL)

    (instance,) = daemon.status()["instances"]
    (part,) = instance["memory"]

    assert part["measured_bytes"] == pytest.approx(part["predicted_bytes"], rel=0.001)
    assert 0 < part["overhead_bytes"] < 200 << 20
    assert instance["speed"]["launches"] == 3
    assert daemon.ctl("forget", MODEL).stdout == f"forgot {MODEL}: 3 launches, 0 requests\n"
    assert daemon.status()["instances"][0]["speed"]["launches"] == 0
