"""Puts what the code knows into docs/: `python scripts/write_docs.py`; `--check` only looks."""

import sys
from pathlib import Path

from inferenceosd import cli, ctl, reference

DOCS = Path(__file__).resolve().parent.parent / "docs"


def parts() -> dict[str, dict[str, str]]:
    """By page, by marker: what belongs between `<!-- marker -->` and `<!-- end -->`."""
    helps = (
        reference.help_markdown(cli.main, "inferenceosd"),
        reference.help_markdown(ctl.main, "inferenceosctl"),
    )
    return {
        "config.md": {
            "keys": reference.keys_markdown(),
            "ollama": reference.ollama_markdown(),
        },
        "cli.md": {"help": "\n\n".join(helps)},
    }


def written(page: str, text: str) -> str:
    """`text` with each part where its marker stands."""
    for marker, part in parts()[page].items():
        begin = f"<!-- {marker} -->\n"
        if text.count(begin) != 1:
            raise SystemExit(f"docs/{page} must hold {begin.strip()} exactly once")
        before, rest = text.split(begin)
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{begin}\n{part}\n\n{end}{after}"
    return text


def main() -> int:
    """0, or with --check 1 where a page is stale."""
    only_look = "--check" in sys.argv[1:]
    stale = []
    for page in parts():
        path = DOCS / page
        before = path.read_text()
        after = written(page, before)
        if after != before:
            stale.append(page)
            if not only_look:
                path.write_text(after)
    for page in stale:
        print(f"docs/{page}: {'stale; run scripts/write_docs.py' if only_look else 'written'}")
    return 1 if stale and only_look else 0


if __name__ == "__main__":
    sys.exit(main())
