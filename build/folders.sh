# Sourced by the scripts that build engines: how they end, and where what they make and fetch lies.
# shellcheck shell=bash

bad() { # the arguments are wrong
  echo "$PROGRAM: $1; see --help" >&2
  exit 2
}

fail() { # the machine is
  echo "$PROGRAM: $1" >&2
  exit 1
}

absolute() { # XDG's folders count where they are absolute
  case "$1" in
    /*) echo "$1" ;;
    *) echo "$2" ;;
  esac
}

state_folder() { # as inferenceosd.platform_folders says
  if [ -n "${STATE_DIRECTORY:-}" ]; then
    echo "${STATE_DIRECTORY%%:*}"
  elif [ "$(uname -s)" = Darwin ]; then
    if [ "$(id -u)" = 0 ]; then
      echo "/Library/Application Support/inferenceosd"
    else
      echo "$HOME/Library/Application Support/inferenceosd"
    fi
  elif [ "$(id -u)" = 0 ]; then
    echo /var/lib/inferenceosd
  else
    echo "$(absolute "${XDG_STATE_HOME:-}" "$HOME/.local/state")/inferenceosd"
  fi
}

build_folder() { # sources, object files and fetched tools: may be deleted at any time
  if [ -n "${INFERENCEOSD_BUILD_DIR:-}" ]; then
    echo "$INFERENCEOSD_BUILD_DIR"
  elif [ "$(uname -s)" = Darwin ]; then
    echo "$HOME/Library/Caches/inferenceosd/build"
  else
    echo "$(absolute "${XDG_CACHE_HOME:-}" "$HOME/.cache")/inferenceosd/build"
  fi
}

find_python() { # 3.11 or newer, with pip
  local candidate
  for candidate in "${PYTHON:-}" "$HERE/.venv/bin/python" python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
}

take_turn() { # one builder at a time in folder $1, whose lock file is open as $2: waits for the other one
  local python
  python=$(find_python)
  # The lock is of the open file, which stays open in this shell when Python has ended.
  "${python:-python3}" - "$1" "$2" <<'END' || fail "cannot lock $1"
import fcntl, sys
folder, lock = sys.argv[1], int(sys.argv[2])
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(f"waiting for another build in {folder}", flush=True)
    fcntl.flock(lock, fcntl.LOCK_EX)
END
}
