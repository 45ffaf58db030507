"""Files of /proc and /sys, under the root or a recorded tree."""

from pathlib import Path

ROOT = Path("/")


def text_of(path: Path) -> str:
    """What a file says, "" where it is absent or refused (PSI may be switched off)."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
