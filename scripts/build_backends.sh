#!/usr/bin/env bash
# Builds llama-server for this machine, into the folder where inferenceosd looks for it. Works with bash 3.2.
set -euo pipefail

usage() {
  cat <<'END'
Usage: scripts/build_backends.sh cpu [options]
       scripts/build_backends.sh --list [--prefix DIR]

Builds llama-server from source and makes it the current one of its backend:
PREFIX/cpu/<build id>/bin/llama-server, PREFIX/cpu/current -> <build id>.

  --prefix DIR     where builds are kept (default: the daemon's state folder, in engines/)
  --source DIR     an unpacked llama.cpp instead of the pinned package (or LLAMA_CPP_SOURCE)
  --work DIR       build here and keep it, to go on after an interruption (default: a temporary folder)
  --jobs N         compile N files at once (default: as cores and memory allow)
  --one-variant    one CPU library, for AVX2 and newer, instead of one per CPU generation: half the time
  --dry-run        print the commands and do nothing
  --list           list the builds under PREFIX and end
  -h, --help       print this

Exit codes: 0 built or up to date, 1 failed, 2 bad arguments. Needs cmake, a C++ compiler, make or ninja, Python.
END
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
COMMIT=0c1e57098bba # of requirements/llama.cpp.txt

bad() { # the arguments are wrong
  echo "build_backends.sh: $1; see --help" >&2
  exit 2
}

fail() { # the machine is
  echo "build_backends.sh: $1" >&2
  exit 1
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
    case "${XDG_STATE_HOME:-}" in
      /*) echo "$XDG_STATE_HOME/inferenceosd" ;;
      *) echo "$HOME/.local/state/inferenceosd" ;;
    esac
  fi
}

read_arguments() {
  backend='' prefix='' source_dir=${LLAMA_CPP_SOURCE:-} work='' jobs='' one_variant=OFF dry_run='' list=''
  while [ $# -gt 0 ]; do
    case "$1" in
      --prefix | --source | --work | --jobs)
        [ $# -ge 2 ] && [ -n "$2" ] || bad "$1 needs a value"
        case "$1" in
          --prefix) prefix=$2 ;;
          --source) source_dir=$2 ;;
          --work) work=$2 ;;
          --jobs) jobs=$2 ;;
        esac
        shift ;;
      --one-variant) one_variant=ON ;;
      --dry-run) dry_run=yes ;;
      --list) list=yes ;;
      -h | --help) usage; exit 0 ;;
      -*) bad "$1 is no option" ;;
      cpu) backend=$1 ;;
      *) bad "'$1' is no backend that can be built yet; there is: cpu" ;;
    esac
    shift
  done
  case "$jobs" in
    '' | [1-9] | [1-9][0-9] | [1-9][0-9][0-9]) ;;
    *) bad "--jobs $jobs: a number from 1 to 999 is wanted" ;;
  esac
  prefix=${prefix:-$(state_folder)/engines}
  [ -n "$list" ] || [ -n "$backend" ] || bad "name a backend: cpu"
  [ -z "$source_dir" ] || [ -f "$source_dir/ggml/CMakeLists.txt" ] ||
    bad "--source $source_dir holds no llama.cpp"
}

list_builds() {
  local found='' binary id current
  for binary in "$prefix"/*/*/bin/llama-server; do
    [ -x "$binary" ] || continue
    id=$(dirname "$(dirname "$binary")")
    [ "$(basename "$id")" != current ] || continue
    current=$(readlink "$(dirname "$id")/current" || true)
    found=yes
    printf '%s %s%s\n' "$(basename "$(dirname "$id")")" "$(basename "$id")" \
      "$([ "$current" = "$(basename "$id")" ] && echo ' (current)')"
  done
  [ -n "$found" ] || echo "no builds under $prefix"
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" "$HERE/.venv/bin/python" python3; do
    if [ -n "$candidate" ] && "$candidate" -m pip --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
}

check_tools() {
  local missing='' get='apt install' compiler=g++ pip=python3-pip
  if [ "$(uname -s)" = Darwin ]; then
    get='brew install' compiler=llvm pip=python
  fi
  command -v cmake >/dev/null || missing="$missing, cmake ($get cmake)"
  command -v "${CXX:-c++}" >/dev/null || missing="$missing, a C++ compiler ($get $compiler)"
  command -v ninja >/dev/null || command -v make >/dev/null || missing="$missing, make ($get make)"
  python=$(find_python)
  [ -n "$python" ] || missing="$missing, Python with pip ($get $pip)"
  [ -z "$missing" ] || fail "this build needs ${missing#, }"
}

default_jobs() { # one per core, but 1 GiB of memory for each and 1 GiB for the rest of the machine
  local cores kib by_memory
  if [ -r /proc/meminfo ]; then
    cores=$(nproc)
    kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  else
    cores=$(sysctl -n hw.ncpu)
    kib=$(($(sysctl -n hw.memsize) / 2048)) # half of it: macOS has no figure for what is available
  fi
  by_memory=$(((kib - 1048576) / 1048576))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

run() {
  if [ -n "$dry_run" ]; then
    printf '%q ' "$@" && echo
  else
    "$@"
  fi
}

short_hash() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])'; }

build_id() { # changes with the source, the options, the compiler and this table
  local origin=$COMMIT
  [ -z "$source_dir" ] || origin=$(cd "$source_dir" && find . -name .git -prune -o -type f -exec cksum {} + | LC_ALL=C sort | short_hash)
  echo "$COMMIT_NAME-$({
    echo "$origin $backend $one_variant $(uname -sm)"
    "${CXX:-c++}" --version
    cat "$HERE/build/llama.cpp.cmake"
  } | short_hash)"
}

fetch_source() {
  [ -z "$source_dir" ] || return 0
  source_dir=$work/source
  [ -z "$dry_run" ] && [ -f "$source_dir/ggml/CMakeLists.txt" ] && return 0
  echo "fetching the source of llama.cpp $COMMIT"
  run mkdir -p "$work/package"
  run "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --no-binary llama-cpp-python --dest "$work/package" --requirement "$HERE/requirements/llama.cpp.txt" ||
    fail "pip could not fetch the source; --source DIR takes an unpacked llama.cpp"
  run rm -rf "$source_dir.new" "$source_dir"
  run mkdir -p "$source_dir.new"
  # Without its .git: a submodule's, it points at a parent that the package does not carry.
  run tar -xzf "$work/package/llama_cpp_python-0.3.36.tar.gz" -C "$source_dir.new" --strip-components=3 \
    --exclude '*/.git' llama_cpp_python-0.3.36/vendor/llama.cpp || fail "the source cannot be unpacked into $work"
  run mv "$source_dir.new" "$source_dir"
}

configure() {
  local generator=() launcher=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # Paths of this machine stay out of the binaries, which makes equal sources equal files.
  local flags="\"-ffile-prefix-map=$source_dir=llama.cpp\" \"-ffile-prefix-map=$tree=build\""
  run mkdir -p "$project"
  [ -n "$dry_run" ] || printf 'cmake_minimum_required(VERSION 3.21)\nproject(ios_llama C CXX)\ninclude("%s")\n' \
    "$HERE/build/llama.cpp.cmake" >"$project/CMakeLists.txt"
  # ${array[@]+…}: bash before 4.4 takes an empty array for an unset one.
  run env GIT_CEILING_DIRECTORIES="$(dirname "$source_dir")" cmake -Wno-dev -S "$project" -B "$tree" \
    ${generator[@]+"${generator[@]}"} ${launcher[@]+"${launcher[@]}"} \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
    -DIOS_SOURCE_DIR="$source_dir" -DIOS_BUILD_COMMIT="$COMMIT_NAME" -DIOS_ONE_VARIANT="$one_variant" ||
    fail "cmake could not configure llama.cpp; see above"
}

switch_to() { # one rename: a daemon sees the old build or the new one, never none
  "$python" - "$prefix/$backend" "$1" <<'END'
import os, sys
folder, build = sys.argv[1:]
link = os.path.join(folder, f".current-{os.getpid()}")
os.symlink(build, link)
os.replace(link, os.path.join(folder, "current"))
END
}

build() {
  local id staging
  id=$(build_id)
  staging=$prefix/$backend/.staging-$id
  if [ -x "$prefix/$backend/$id/bin/llama-server" ]; then
    switch_to "$id"
    echo "up to date: $prefix/$backend/$id"
    return
  fi
  fetch_source
  configure
  cmake --build "$tree" --parallel "$jobs" --target ios || fail "llama.cpp did not compile; see above"
  rm -rf "$staging"
  cmake --install "$tree" --component ios --strip --prefix "$staging" || fail "cannot write into $prefix"
  "$staging/bin/llama-server" --version || fail "the new llama-server does not start; $prefix/$backend/current stays as it was"
  mv "$staging" "$prefix/$backend/$id"
  switch_to "$id"
  echo "built: $prefix/$backend/$id"
}

main() {
  read_arguments "$@"
  if [ -n "$list" ]; then
    list_builds
    return
  fi
  [ -z "$source_dir" ] || source_dir=$(cd "$source_dir" && pwd)
  COMMIT_NAME=$([ -n "$source_dir" ] && echo local || echo "$COMMIT")
  jobs=${jobs:-$(default_jobs)}
  if [ -n "$dry_run" ]; then
    python=$(find_python)
    python=${python:-python3} work=${work:-/tmp/llama.cpp}
    project=$work/project tree=$work/$backend
    echo "# prefix: $prefix"
    fetch_source
    configure
    run cmake --build "$tree" --parallel "$jobs" --target ios
    run cmake --install "$tree" --component ios --strip --prefix "$prefix/$backend/<build id>"
    return
  fi
  check_tools
  mkdir -p "$prefix/$backend" || fail "cannot write into $prefix; --prefix DIR names another folder"
  if [ -z "$work" ]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/llama.cpp.XXXXXX")
    trap 'rm -rf "$work"' EXIT
  else
    mkdir -p "$work"
    work=$(cd "$work" && pwd)
  fi
  project=$work/project tree=$work/$backend-$one_variant
  build
}

main "$@"
