"""The reference parts of docs/, made from what the code says: every setting, every command's help.

scripts/write_docs.py puts them into the pages; a test fails where a page is stale.
"""

import click

from inferenceosd.settings import table_keys
from inferenceosd.settings.environment import OLLAMA_VARIABLES, variable
from inferenceosd.settings.file import AnyKey
from inferenceosd.settings.keys import KEYS

WIDTH = 100


def keys_markdown() -> str:
    """Every setting of the configuration file, section by section."""
    parts = []
    section = ""
    for key in KEYS:
        here, _, name = key.name.partition(".")
        if name and here != section:
            section = here
            parts.append(f"### `[{section}]`")
        parts.append(_key(key, key.name, variable=variable(key)) if name else _tables(key))
    return "\n\n".join(parts)


def ollama_markdown() -> str:
    """Ollama's variables and what each sets."""
    rows = [
        f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} |"
        for name, keys in OLLAMA_VARIABLES.items()
    ]
    return "\n".join(["| Variable | Sets |", "|---|---|", *rows])


def help_markdown(command: click.Command, name: str, *, level: str = "##") -> str:
    """A command's --help, and its subcommands', as their readers see them."""
    parts = [f"{level} `{name}`", _help(command, name)]
    if isinstance(command, click.Group):
        for sub_name, sub in command.commands.items():
            parts.append(help_markdown(sub, f"{name} {sub_name}", level=f"{level}#"))
    return "\n\n".join(parts)


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=WIDTH)
    return f"```text\n{command.get_help(context).rstrip()}\n```"


_TABLES = {
    "devices": ('[devices."NAME"]', table_keys.DEVICE_KEYS),
    "backends": ("[backends.NAME]", table_keys.BACKEND_KEYS),
    "model": ("[[model]]", table_keys.MODEL_KEYS),
    "group": ("[[group]]", table_keys.GROUP_KEYS),
    "caller": ("[[caller]]", table_keys.CALLER_KEYS),
}


def _tables(key: AnyKey) -> str:
    header, inside = _TABLES[key.name]
    intro = f"{key.meaning} As inline TOML in `{variable(key)}`."
    parts = [f"### `{header}`", intro]
    return "\n\n".join([*parts, *(_key(sub, f"{key.name}.{sub.name}") for sub in inside)])


def _key(key: AnyKey, name: str, *, variable: str | None = None) -> str:
    shown = key.kind.show(key.default) if key.default is not None else "not set"
    default = key.why if shown in ("not set", "[]", '""') else f"`{shown}` ({key.why})"
    lines = [
        f"- Type: {key.kind.name}: {key.kind.allowed}",
        f"- Default: {default}",
        *([f"- Variable: `{variable}`"] if variable else []),
    ]
    return f"#### `{name}`\n\n{key.meaning}\n\n" + "\n".join(lines)
