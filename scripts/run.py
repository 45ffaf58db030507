"""`make run`: the daemon with the quickstart's model beside the user's own, until Ctrl-C.

Run with the virtual environment's Python; becomes the daemon, so signals reach it directly.
"""

import os
import sys
from pathlib import Path

from supervisor.quickstart import quickstart_model_dir


def main() -> None:
    """Become the daemon."""
    daemon = str(Path(sys.executable).with_name("inferenceosd"))
    model_dir = quickstart_model_dir()
    dirs = [] if model_dir is None else ["--model-dir", str(model_dir)]
    os.execv(daemon, [daemon, *dirs, *sys.argv[1:]])


if __name__ == "__main__":
    main()
