"""inferenceosd.premises: what a daemon has to itself, and gives back."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from inferenceosd.premises import premises
from inferenceosd.service_manager import ServiceManager
from inferenceosd.settings.config import Config, Options, read_config
from inferenceosd.state_lock import StateLocked


def config_in(folder: Path) -> Config:
    options = Options(listen="127.0.0.1:0", state_dir=str(folder / "state"))
    return read_config(options, environ={"INFERENCEOSD_RUNTIME_DIR": str(folder / "run")})


def test_two_daemons_do_not_share_a_state_folder(short_folder: Path) -> None:
    config, manager = config_in(short_folder), ServiceManager({})
    with ExitStack() as first, ExitStack() as second:
        premises(config, manager, first)

        with pytest.raises(StateLocked):
            premises(config, manager, second)


def test_what_was_had_can_be_had_again(short_folder: Path) -> None:
    config, manager = config_in(short_folder), ServiceManager({})
    for _ in range(2):
        with ExitStack() as held:
            doors, ground = premises(config, manager, held)
            assert Path(config.admin_socket).is_socket()
            assert doors.public[0].getsockname()[1] > 0
            assert ground.run_dir.is_dir()

        assert not Path(config.admin_socket).exists()
        assert doors.public[0].fileno() == -1
