"""docs/: nothing that can be configured or called lacks its heading, and nothing is stale."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferenceosd import ctl
from inferenceosd.platform_folders import Platform
from inferenceosd.settings import table_keys
from inferenceosd.settings.config import Config, Options, load_config
from inferenceosd.settings.keys import KEYS

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "docs" / "config.md").read_text().splitlines()
CLI = (ROOT / "docs" / "cli.md").read_text().splitlines()
FLAGS = (ROOT / "docs" / "flags.md").read_text()
EVENTS = (ROOT / "docs" / "events.md").read_text()
KEPT_IN = {
    **{level: {"log"} for level in ("debug", "info", "warning", "error", "exception")},
    "record": {"events"},
    "_record": {"log", "events"},
}
"""The method that tells of an event → where that leaves it."""


def test_every_setting_has_its_heading() -> None:
    tables = {
        "devices": table_keys.DEVICE_KEYS,
        "backends": table_keys.BACKEND_KEYS,
        "model": table_keys.MODEL_KEYS,
        "group": table_keys.GROUP_KEYS,
        "caller": table_keys.CALLER_KEYS,
    }
    names = [key.name for key in KEYS if key.name not in tables]
    names += [f"{table}.{key.name}" for table, keys in tables.items() for key in keys]

    assert [name for name in names if f"#### `{name}`" not in CONFIG] == []


def test_every_command_has_its_heading() -> None:
    commands = [f"### `inferenceosctl {name}`" for name in ctl.main.commands]

    assert [line for line in ("## `inferenceosd`", *commands) if line not in CLI] == []


def named_values(tree: ast.Module) -> dict[str, ast.expr]:
    """What a module gives names to."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def events_of(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Each event that a module tells of, and where it is kept."""
    tables = named_values(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        told: ast.expr = node.args[0]
        if isinstance(told, ast.Subscript) and isinstance(told.value, ast.Name):
            told = tables.get(told.value.id, told)
        for part in ast.walk(told):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value, KEPT_IN.get(node.func.attr, set())


def test_every_event_has_its_row_and_every_row_its_event() -> None:
    kept: dict[str, set[str]] = {}
    for package in ("inferenceosd", "proxy", "supervisor"):
        for file in (ROOT / package).rglob("*.py"):
            for event, places in events_of(ast.parse(file.read_text())):
                if places:
                    kept.setdefault(event, set()).update(places)

    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z, ]+) \|", EVENTS, re.MULTILINE)

    assert {event: set(places.split(", ")) for event, places in rows} == kept
    assert len(rows) == len(kept)


def options_of(tree: ast.Module) -> Iterator[str]:
    """The newest spelling of each option that a module passes on."""
    tables = named_values(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("_Option"), args=[ast.Name(table), *_]):
                names = tables[table]
            case ast.Call(func=ast.Name("_Option"), args=[names, *_]):
                pass
            case _:
                continue
        match names:
            case ast.Tuple([ast.Constant(str(name)), *_]):
                yield name


def test_every_option_of_a_child_has_its_row_and_no_other_has() -> None:
    passed = set(options_of(ast.parse((ROOT / "planners" / "argv.py").read_text())))

    cells = re.findall(r"^\| (`--[^|]+) \|", FLAGS, re.MULTILINE)

    assert set(re.findall(r"`(--[a-z-]+)`", " ".join(cells))) == passed


@pytest.mark.parametrize("page", ["README.md", "docs/config.md"])
def test_a_sample_configuration_is_right(page: str) -> None:
    sample = _sample((ROOT / page).read_text())

    assert sample.models
    assert sample.warnings == ()


def test_the_first_sample_wants_no_device_that_a_reader_may_not_have() -> None:
    placement = _sample((ROOT / "README.md").read_text()).placement

    assert (placement.devices, placement.rpc_servers) == ((), ())


def _sample(page: str) -> Config:
    """What the first TOML block of a page says."""
    (text, *_) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    platform = Platform(system="linux", is_root=False, home="/home/ada", cwd="/srv")
    return load_config(
        file="/etc/sample.toml", text=text, environ={}, options=Options(), platform=platform
    )


def test_the_pages_hold_what_the_code_says_now() -> None:
    script = ROOT / "scripts" / "write_docs.py"

    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_decisions_are_numbered_one_after_another_in_name_and_title() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [page.read_text().split(".")[0] for page in pages] == [
        f"# {number}" for number in range(1, len(pages) + 1)
    ]
