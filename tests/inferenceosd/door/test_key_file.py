import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferenceosd.door.key_file import KeyFileRefused, UnknownKey, add_key, read_keys, revoke_key
from proxy.admission.keys import KeyRing, Scope

NOW = 1_800_000_000.0


def added(path: Path, name: str = "laptop", scope: Scope = Scope.INFER) -> tuple[str, str]:
    key, token = add_key(str(path), name=name, scope=scope, expires_at=None)
    return key.key_id, token


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def test_where_there_is_no_file_there_are_no_keys(path: Path) -> None:
    assert read_keys(str(path)) is None


def test_a_key_that_was_made_opens_and_only_its_hash_is_in_the_file(path: Path) -> None:
    key_id, token = added(path, "laptop", Scope.MANAGE)

    keys = read_keys(str(path)) or ()
    held = KeyRing(keys).holder(token, now=NOW)

    assert held is not None
    assert (held.key_id, held.name, held.scope) == (key_id, "laptop", Scope.MANAGE)
    assert token.rpartition("-")[2] not in path.read_text()


def test_the_file_and_its_folder_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        added(path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_key_that_is_revoked_is_gone_and_the_file_stays(path: Path) -> None:
    first, _ = added(path, "first")
    second, _ = added(path, "second")

    gone, left = revoke_key(str(path), first)
    _, none_left = revoke_key(str(path), second)

    assert (gone.name, left, none_left) == ("first", 1, 0)
    assert read_keys(str(path)) == ()


def test_a_key_that_is_not_there_cannot_be_revoked(path: Path) -> None:
    added(path)

    with pytest.raises(UnknownKey, match="no API key 'beef'"):
        revoke_key(str(path), "beef")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_reach_is_refused_with_the_remedy(path: Path, mode: int) -> None:
    added(path)
    path.chmod(mode)

    with pytest.raises(KeyFileRefused, match=rf"mode is {mode:04o}, .*chmod 600"):
        read_keys(str(path))


@pytest.mark.root
def test_a_file_of_another_user_is_refused_unless_the_folder_is_his(path: Path) -> None:
    added(path)
    os.chown(path, 12345, 12345)

    with pytest.raises(KeyFileRefused, match="belongs to another user, 12345"):
        read_keys(str(path))
    os.chown(path.parent, 12345, 12345)
    assert len(read_keys(str(path)) or ()) == 1


@pytest.mark.root
def test_what_root_writes_belongs_to_the_daemons_user(path: Path) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 12345, 12346)

    added(path)

    assert {(f.stat().st_uid, f.stat().st_gid) for f in path.parent.iterdir()} == {(12345, 12346)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"keys": 1}',
        '{"keys": [], "more": 1}',
        '{"keys": [{"id": "a", "name": "b", "scope": "root", "sha256": "00", "created_at": 1}]}',
        '{"keys": [{"id": "a", "name": "b", "scope": "infer", "sha256": "0g", "created_at": 1}]}',
        '{"keys": [{"id": "a", "name": "b", "scope": "infer", "sha256": "00", "created_at": 1}]}',
        "[" * 100_000,
        "\xff",
        " " * (2 << 20),
    ],
    ids=range(11),
)
def test_what_is_no_file_of_keys_is_refused(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)

    with pytest.raises(KeyFileRefused):
        read_keys(str(path))


def test_two_keys_of_one_id_are_refused(path: Path) -> None:
    added(path)
    told = json.loads(path.read_text())
    path.write_text(json.dumps({"keys": told["keys"] * 2}))

    with pytest.raises(KeyFileRefused, match="two keys have one id"):
        read_keys(str(path))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused_at_once(path: Path, kind: str) -> None:
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path, 0o600)

    with pytest.raises(KeyFileRefused):
        read_keys(str(path))


def test_edits_at_once_lose_no_key(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {key_id for key_id, _ in pool.map(lambda n: added(path, f"k{n}"), range(24))}

    assert {key.key_id for key in read_keys(str(path)) or ()} == ids
    assert len(ids) == 24


def test_an_edit_by_another_program_is_waited_for(path: Path) -> None:
    added(path, "first")
    program = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, f"{path}.lock"]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        editing = pool.submit(added, path, "second")
        had = len(read_keys(str(path)) or ())
        holder.stdin.close()
        editing.result(30)

    assert had == 1
    assert len(read_keys(str(path)) or ()) == 2


def test_what_a_killed_edit_left_is_in_nobodys_way(path: Path) -> None:
    added(path)
    Path(f"{path}.new").symlink_to("/etc/passwd")

    added(path)

    assert len(read_keys(str(path)) or ()) == 2
    assert not Path(f"{path}.new").exists()
