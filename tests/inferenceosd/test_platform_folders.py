"""inferenceosd.platform_folders: systemd's folders, root's, the user's, macOS's."""

import pytest

from inferenceosd.platform_folders import (
    Platform,
    config_candidates,
    runtime_folder,
    state_folder,
    this_platform,
)

USER = Platform("linux", is_root=False, home="/home/ada", cwd="/")
ROOT = Platform("linux", is_root=True, home="/root", cwd="/")
MAC = Platform("darwin", is_root=False, home="/Users/ada", cwd="/")
MAC_ROOT = Platform("darwin", is_root=True, home="/var/root", cwd="/")
SUPPORT = "Library/Application Support/inferenceosd"
SYSTEMD = {"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "RUNTIME_DIRECTORY": "/run/a"}


@pytest.mark.parametrize(
    ("platform", "environ", "state", "runtime"),
    [
        (USER, {}, "/home/ada/.local/state/inferenceosd", "/S/run"),
        (USER, {"XDG_STATE_HOME": "/x"}, "/x/inferenceosd", "/S/run"),
        (USER, {"XDG_STATE_HOME": "x"}, "/home/ada/.local/state/inferenceosd", "/S/run"),
        (USER, {"XDG_RUNTIME_DIR": "/r"}, "/home/ada/.local/state/inferenceosd", "/r/inferenceosd"),
        (USER, SYSTEMD, "/var/lib/a", "/run/a"),
        (ROOT, {"XDG_RUNTIME_DIR": "/r"}, "/var/lib/inferenceosd", "/run/inferenceosd"),
        (ROOT, SYSTEMD, "/var/lib/a", "/run/a"),
        (MAC, {}, f"/Users/ada/{SUPPORT}", "/S/run"),
        (MAC_ROOT, {}, f"/{SUPPORT}", "/var/run/inferenceosd"),
    ],
)  # fmt: skip
def test_state_and_runtime_folders(
    platform: Platform, environ: dict[str, str], state: str, runtime: str
) -> None:
    assert state_folder(environ, platform) == state
    assert runtime_folder(environ, platform, state_dir="/S") == runtime


@pytest.mark.parametrize(
    ("platform", "environ", "files"),
    [
        (USER, {}, ("/home/ada/.config/inferenceosd", "/etc/inferenceosd")),
        (USER, {"XDG_CONFIG_HOME": "/x"}, ("/x/inferenceosd", "/etc/inferenceosd")),
        (ROOT, {}, ("/etc/inferenceosd",)),
        (ROOT, {"CONFIGURATION_DIRECTORY": "/etc/own"}, ("/etc/own", "/etc/inferenceosd")),
        (MAC, {}, (f"/Users/ada/{SUPPORT}", f"/{SUPPORT}")),
    ],
)
def test_configuration_files_best_first(
    platform: Platform, environ: dict[str, str], files: tuple[str, ...]
) -> None:
    expected = tuple(f"{folder}/config.toml" for folder in files)

    assert config_candidates(environ, platform) == expected


def test_this_platform_has_absolute_folders() -> None:
    platform = this_platform()

    assert platform.home.startswith("/")
    assert platform.folders.absolute("x") == f"{platform.cwd.rstrip('/')}/x"
