"""`make run`: the daemon with the quickstart's model beside the user's own, until Ctrl-C.

The folders are those of the settings at this moment: a reload does not change them.

Run with the virtual environment's Python; becomes the daemon, so signals reach it directly.
"""

import os
import sys
from pathlib import Path

from inferenceosd.settings.config import Options, read_config
from inferenceosd.settings.error import ConfigError
from supervisor.engines.quickstart import quickstart_model_dir


def main() -> None:
    """Become the daemon, or exit 2 where the settings are wrong."""
    try:
        own = read_config(Options()).model_dirs
    except ConfigError as exc:
        print(f"inferenceosd: {exc}", file=sys.stderr)
        sys.exit(2)
    quickstart = quickstart_model_dir()
    dirs = own if quickstart is None else (*own, str(quickstart))
    daemon = str(Path(sys.executable).with_name("inferenceosd"))
    options = [part for folder in dirs for part in ("--model-dir", folder)]
    os.execv(daemon, [daemon, *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
