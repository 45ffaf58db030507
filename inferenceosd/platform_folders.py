"""Where this platform keeps configuration, state and sockets. Pure: the machine is an argument."""

import os
import os.path
import sys
from collections.abc import Mapping

from msgspec import Struct

from inferenceosd.settings.kinds import Folders

NAME = "inferenceosd"
CONFIG_FILE = "config.toml"


class Platform(Struct, frozen=True):
    """What folders depend on."""

    system: str
    """As sys.platform says: "linux", "darwin"."""
    is_root: bool
    home: str
    cwd: str

    @property
    def folders(self) -> Folders:
        """For paths given in the environment or on the command line."""
        return self.folders_from(self.cwd)

    def folders_from(self, base: str) -> Folders:
        """For paths given in a file that lies in `base`."""
        return Folders(base=base, home=self.home)

    @property
    def socket_path_limit_bytes(self) -> int:
        """The longest path of a Unix socket, its final NUL excluded (sun_path in sys/un.h)."""
        return 103 if self.system == "darwin" else 107


def this_platform() -> Platform:
    """The machine and user we run on."""
    return Platform(
        system=sys.platform,
        is_root=os.geteuid() == 0,
        home=os.path.expanduser("~"),
        cwd=os.getcwd(),
    )


def config_candidates(environ: Mapping[str, str], platform: Platform) -> tuple[str, ...]:
    """Where a configuration file may lie, best first; the first that exists is read."""
    told = _first(environ.get("CONFIGURATION_DIRECTORY"))
    users = None if platform.is_root else _user_folder("config", environ, platform)
    own = (os.path.join(at, CONFIG_FILE) for at in (told, users) if at)
    return (*own, system_wide_file(platform))


def system_wide_file(platform: Platform) -> str:
    """The configuration file of all users, and the only one of root."""
    is_mac = platform.system == "darwin"
    return f"{'/Library/Application Support' if is_mac else '/etc'}/{NAME}/{CONFIG_FILE}"


def unread_by_root(environ: Mapping[str, str], platform: Platform) -> str | None:
    """The file in root's home, where anybody else's is read; None for them."""
    if not platform.is_root:
        return None
    return os.path.join(_user_folder("config", environ, platform), CONFIG_FILE)


def state_folder(environ: Mapping[str, str], platform: Platform) -> str:
    """What outlives a restart: models, tried engines, the journal."""
    if told := _first(environ.get("STATE_DIRECTORY")):
        return told
    if platform.is_root:
        mac = f"/Library/Application Support/{NAME}"
        return mac if platform.system == "darwin" else f"/var/lib/{NAME}"
    return _user_folder("state", environ, platform)


def own_model_dir(state_dir: str) -> str:
    """The folder of models that the daemon makes itself where it is one of models.dirs."""
    return os.path.join(state_dir, "models")


def own_store_dir(state_dir: str) -> str:
    """The daemon's own store: models that were pulled, created and copied."""
    return os.path.join(state_dir, "store")


def runtime_folder(environ: Mapping[str, str], platform: Platform, *, state_dir: str) -> str:
    """What ends with the daemon: its sockets. Below the state folder where the user has none."""
    if told := _first(environ.get("RUNTIME_DIRECTORY")):
        return told
    if platform.is_root:
        return f"/var/run/{NAME}" if platform.system == "darwin" else f"/run/{NAME}"
    users = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(users):
        return os.path.join(users, NAME)
    return os.path.join(state_dir, "run")


def _user_folder(purpose: str, environ: Mapping[str, str], platform: Platform) -> str:
    if platform.system == "darwin":
        return os.path.join(platform.home, "Library", "Application Support", NAME)
    variable, usual = {
        "config": ("XDG_CONFIG_HOME", ".config"),
        "state": ("XDG_STATE_HOME", ".local/state"),
    }[purpose]
    told = environ.get(variable, "")
    # The XDG specification has relative paths ignored.
    base = told if os.path.isabs(told) else os.path.join(platform.home, usual)
    return os.path.join(base, NAME)


def _first(folders: str | None) -> str | None:
    """systemd joins several folders by colons; the first is ours."""
    return folders.split(":")[0] or None if folders else None
