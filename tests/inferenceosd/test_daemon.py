"""inferenceosd.daemon: how it begins, or does not. Its life is in tests/integration."""

import socket
from pathlib import Path

import pytest

from inferenceosd.daemon import run
from inferenceosd.settings.config import Options, read_config


@pytest.mark.parametrize("others", [(), ("elsewhere",)], ids=["alone", "beside others"])
def test_the_model_folder_of_its_own_is_made(short_folder: Path, others: tuple[str, ...]) -> None:
    own = short_folder / "state" / "models"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = Options(
            listen=f"127.0.0.1:{taken.getsockname()[1]}",
            state_dir=str(short_folder / "state"),
            model_dirs=(str(own), *(str(short_folder / name) for name in others)),
        )
        config = read_config(
            options, environ={"INFERENCEOSD_RUNTIME_DIR": str(short_folder / "run")}
        )

        assert run(config, reload=lambda: config) == 1  # the port is taken

    assert own.is_dir()
    assert not (short_folder / "elsewhere").exists()


def test_a_state_folder_that_cannot_be_made_is_one_line_with_the_option(
    short_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (short_folder / "file").write_text("in the way")
    options = Options(listen="127.0.0.1:0", state_dir=str(short_folder / "file" / "state"))
    config = read_config(options, environ={"INFERENCEOSD_RUNTIME_DIR": str(short_folder / "run")})

    assert run(config, reload=lambda: config) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert f"{short_folder}/file/state: Not a directory" in line
    assert "--state-dir" in line
