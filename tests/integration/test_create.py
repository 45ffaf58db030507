"""`inferenceosctl create`, against the real daemon, engine and model."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from scripts.started_daemon import StartedDaemon

MODEL = "SmolLM2-135M-Instruct.Q4_1"
PROGRAM = Path(sys.executable).with_name("inferenceosctl")


def run(
    daemon: StartedDaemon, *args: str | Path, piped: str | bytes = ""
) -> subprocess.CompletedProcess[str]:
    argv = [PROGRAM, "--socket", daemon.admin_socket, *args]
    told = piped.encode() if isinstance(piped, str) else piped
    done = subprocess.run(argv, input=told, capture_output=True, timeout=120, check=False)
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(argv, done.returncode, out, err)


def test_a_model_is_made_by_a_modelfile_and_its_own_modelfile_makes_it_again(
    daemon: StartedDaemon, model_dir: Path, tmp_path: Path
) -> None:
    (weights,) = model_dir.rglob(f"{MODEL}.gguf")
    # Not the very file that the store may have of another model.
    own = weights.read_bytes().replace(b"general.name", b"general.mine", 1)
    (tmp_path / "tiny.gguf").write_bytes(own)
    (tmp_path / "Modelfile").write_text(
        "# mine\nFROM ./tiny.gguf\nparameter num_predict 3\nPARAMETER temperature 0\n"
        'PARAMETER stop "<a b>"\nPARAMETER mirostat 1\nSYSTEM """Be\n# brief."""\n'
        "MESSAGE user hi\nMESSAGE assistant ho\nLICENSE MIT\n"
    )

    made = run(daemon, "create", "mine", "--file", tmp_path / "Modelfile")
    shown = daemon.ctl("show", "mine", "--modelfile").stdout
    again = run(daemon, "create", "again", "-f", "-", piped=shown)
    shown_again = daemon.ctl("show", "again", "--modelfile").stdout
    told = {"model": "mine", "messages": [{"role": "user", "content": "Count."}], "stream": False}
    answer = httpx.post(f"{daemon.base}/api/chat", json=told, timeout=120, trust_env=False).json()
    daemon.ctl("rm", "mine", "again")

    assert made.returncode == 0, made.stderr
    assert made.stderr == "inferenceosctl: mirostat is no parameter any more: left out\n"
    lines = made.stdout.splitlines()
    assert lines[:2] == ["reading tiny.gguf", "uploading tiny.gguf"]
    assert lines[-1] == "success"
    for said in ('SYSTEM """Be\n# brief."""\n', 'PARAMETER stop "<a b>"\n', 'LICENSE """MIT"""'):
        assert said in shown
    assert "PARAMETER num_predict 3\n" in shown
    assert 'MESSAGE user """hi"""\nMESSAGE assistant """ho"""\n' in shown
    assert again.returncode == 0, again.stderr
    assert "uploading" not in again.stdout
    assert shown_again == shown.replace("# FROM mine:latest", "# FROM again:latest")
    assert answer["eval_count"] == 3


@pytest.mark.parametrize(
    ("args", "piped", "says"),
    [
        (("create", "x", "-f", "none"), "", "none cannot be read: No such file or directory"),
        (("create", "x", "-f", "-"), "FROM y\nPARAMETER odd 1", "line 2: unknown parameter 'odd'"),
        (("create", "a b", "-f", "-"), "FROM y", "invalid model name"),
    ],
)
def test_what_cannot_be_made_is_one_sentence_and_exit_status_1(
    daemon: StartedDaemon, args: tuple[str, ...], piped: str, says: str
) -> None:
    done = run(daemon, *args, piped=piped)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("inferenceosctl: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_key_of_too_small_a_scope_makes_nothing(daemon: StartedDaemon) -> None:
    key = daemon.ctl("key", "add", "laptop").stdout.strip()
    try:
        done = run(daemon, "create", "x", "-f", "-", "--key", key, piped=f"FROM {MODEL}")
    finally:
        daemon.ctl("key", "revoke", key.split("-")[2])

    assert done.returncode == 1
    assert "manage" in done.stderr
