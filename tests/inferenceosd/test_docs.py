"""docs/: nothing that can be configured or called lacks its heading, and nothing is stale."""

import subprocess
import sys
from pathlib import Path

from inferenceosd import config_table_keys as table_keys
from inferenceosd import ctl
from inferenceosd.config_keys import KEYS

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "docs" / "config.md").read_text().splitlines()
CLI = (ROOT / "docs" / "cli.md").read_text().splitlines()


def test_every_setting_has_its_heading() -> None:
    tables = {
        "devices": table_keys.DEVICE_KEYS,
        "backends": table_keys.BACKEND_KEYS,
        "model": table_keys.MODEL_KEYS,
    }
    names = [key.name for key in KEYS if key.name not in tables]
    names += [f"{table}.{key.name}" for table, keys in tables.items() for key in keys]

    assert [name for name in names if f"#### `{name}`" not in CONFIG] == []


def test_every_command_has_its_heading() -> None:
    commands = [f"### `inferenceosctl {name}`" for name in ctl.main.commands]

    assert [line for line in ("## `inferenceosd`", *commands) if line not in CLI] == []


def test_the_pages_hold_what_the_code_says_now() -> None:
    script = ROOT / "scripts" / "write_docs.py"

    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
