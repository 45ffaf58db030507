"""inferenceosd.daemon: how it begins, or does not. Its life is in tests/integration."""

import socket
from pathlib import Path

import pytest

from inferenceosd.config import Options, read_config
from inferenceosd.daemon import run


@pytest.mark.parametrize("others", [(), ("elsewhere",)], ids=["alone", "beside others"])
def test_the_model_folder_of_its_own_is_made(tmp_path: Path, others: tuple[str, ...]) -> None:
    own = tmp_path / "state" / "models"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = Options(
            listen=f"127.0.0.1:{taken.getsockname()[1]}",
            state_dir=str(tmp_path / "state"),
            model_dirs=(str(own), *(str(tmp_path / name) for name in others)),
        )
        config = read_config(options, environ={"INFERENCEOSD_RUNTIME_DIR": str(tmp_path / "run")})

        assert run(config, reload=lambda: config) == 1  # the port is taken

    assert own.is_dir()
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_folder_that_cannot_be_made_is_one_line_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    options = Options(listen="127.0.0.1:0", state_dir=str(tmp_path / "file" / "state"))
    config = read_config(options, environ={"INFERENCEOSD_RUNTIME_DIR": str(tmp_path / "run")})

    assert run(config, reload=lambda: config) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/file/state: Not a directory" in line
    assert "--state-dir" in line
