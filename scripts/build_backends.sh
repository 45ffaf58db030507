#!/usr/bin/env bash
# Builds llama-server for this machine, into the folder where inferenceosd looks for it. Works with bash 3.2.
set -euo pipefail

usage() {
  cat <<'END'
Usage: scripts/build_backends.sh BACKEND... [options]
       scripts/build_backends.sh auto [options]
       scripts/build_backends.sh --list [--prefix DIR]

Builds llama-server from source, tries it, and makes it the current one of its backend:
PREFIX/BACKEND/<build id>/bin/llama-server, PREFIX/BACKEND/current -> <build id>.

BACKEND is cpu, vulkan, cuda, hip or metal. auto builds those that this machine has the tools and the
hardware for, and says what the others lack and how to get it.

  --prefix DIR       where builds are kept (default: the daemon's state folder, in engines/)
  --source DIR       an unpacked llama.cpp (or LLAMA_CPP_SOURCE) instead of the pinned one
  --commit ID        this commit, 40 hex digits, by git
  --repository URL   by git from there (or LLAMA_CPP_REPOSITORY) instead of upstream's
  --jobs N           compile N files at once (default: as cores and memory allow)
  --native           for this very machine and no other
  --one-variant      one CPU library, for AVX2 and newer, instead of one per CPU generation: half the time
  --cuda-arch LIST   for these GPUs alone, as CMake names them: "90" or "86;89"
  --keep N           leave the newest N builds of a backend (default: 3); current and pinned ones stay
  --configure        have CMake look at tools and options, print the folder it did that in, and end
  --dry-run          print the commands and do nothing
  --list             list the builds under PREFIX, and which backends can be built here, and end
  -h, --help         print this

Sources and object files are kept in INFERENCEOSD_BUILD_DIR, or inferenceosd/build in the cache folder, which makes the
next build short and goes on where an interrupted one ended. ccache is used where it is installed.

Exit codes: 0 built or up to date, 1 failed, 2 bad arguments. Needs cmake, a C++ compiler, make or ninja, Python.
END
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PROGRAM=build_backends.sh
# shellcheck source=build/folders.sh
. "$HERE/build/folders.sh"
# shellcheck source=build/toolchain.sh
. "$HERE/build/toolchain.sh"
# shellcheck source=build/source.sh
. "$HERE/build/source.sh"

read_arguments() {
  backends='' prefix='' told_source=${LLAMA_CPP_SOURCE:-} told_commit='' repository=${LLAMA_CPP_REPOSITORY:-}
  told_jobs='' variant=portable cuda_arch='' keep=3 dry_run='' list='' auto='' only_configure=''
  while [ $# -gt 0 ]; do
    case "$1" in
      --prefix | --source | --commit | --repository | --jobs | --cuda-arch | --keep)
        [ $# -ge 2 ] && [ -n "$2" ] || bad "$1 needs a value"
        case "$1" in
          --prefix) prefix=$2 ;;
          --source) told_source=$2 ;;
          --commit) told_commit=$2 ;;
          --repository) repository=$2 ;;
          --jobs) told_jobs=$2 ;;
          --cuda-arch) cuda_arch=$2 ;;
          --keep) keep=$2 ;;
        esac
        shift ;;
      --native) variant=native ;;
      --one-variant) variant=one ;;
      --configure) only_configure=yes ;;
      --dry-run) dry_run=yes ;;
      --list) list=yes ;;
      -h | --help) usage; exit 0 ;;
      -*) bad "$1 is no option" ;;
      auto) auto=yes ;;
      *)
        case " $ALL_BACKENDS " in *" $1 "*) ;; *) bad "'$1' is no backend; there are: $ALL_BACKENDS" ;; esac
        backends="$backends $1" ;;
    esac
    shift
  done
  check_arguments
}

check_arguments() {
  is_number "$told_jobs" || [ -z "$told_jobs" ] || bad "--jobs $told_jobs: a number from 1 to 999 is wanted"
  is_number "$keep" || bad "--keep $keep: a number from 1 to 999 is wanted"
  case "$told_commit" in
    *[!0-9a-f]*) bad "--commit $told_commit: 40 hex digits are wanted" ;;
    *) [ -z "$told_commit" ] || [ ${#told_commit} = 40 ] || bad "--commit $told_commit: 40 hex digits are wanted" ;;
  esac
  case "$cuda_arch" in *[!0-9a-z\;-]*) bad "--cuda-arch $cuda_arch: numbers parted by ; are wanted" ;; esac
  prefix=${prefix:-$(state_folder)/engines}
  [ -z "$told_source" ] || [ -f "$told_source/ggml/CMakeLists.txt" ] || bad "--source $told_source holds no llama.cpp"
  [ -z "$auto" ] || [ -z "$backends" ] || bad "auto names all backends; leave out$backends"
  [ -n "$list$auto$backends" ] || bad "name a backend: $ALL_BACKENDS, or auto"
}

is_number() {
  case "$1" in
    [1-9] | [1-9][0-9] | [1-9][0-9][0-9]) ;;
    *) return 1 ;;
  esac
}

builds_of() { # ids under PREFIX/BACKEND, newest first
  # shellcheck disable=SC2012 # ids are ours: letters, digits and dashes
  (cd "$prefix/$1" 2>/dev/null && ls -td -- */bin/llama-server 2>/dev/null) | cut -d/ -f1 | grep -v -x -e current -e pinned || true
}

link_of() { # the build that PREFIX/BACKEND/NAME points at
  readlink "$prefix/$1/$2" 2>/dev/null || true
}

list_builds() {
  local found='' backend id notes
  for backend in $ALL_BACKENDS; do
    for id in $(builds_of "$backend" | LC_ALL=C sort); do
      found=yes notes=''
      [ "$(link_of "$backend" current)" != "$id" ] || notes="$notes (current)"
      [ "$(link_of "$backend" pinned)" != "$id" ] || notes="$notes (pinned)"
      [ ! -e "$prefix/$backend/$id.failed" ] || notes="$notes (failed)"
      echo "$backend $id$notes"
    done
  done
  [ -n "$found" ] || echo "no builds under $prefix"
  echo "can be built here:"
  for backend in $ALL_BACKENDS; do
    echo "  $backend: $(why_not "$backend" || echo yes)"
  done
}

missing_line() { # what a backend lacks, in one line; nothing where nothing
  # What is got in the same way is told together, and the way once.
  missing_for "$1" | awk -F '\t' '
    NR > 1 {printf "%s", ($2 == way) ? ", " : " (" way "), "} {printf "%s", $1; way = $2}
    END {if (NR) printf " (%s)", way}'
}

why_not() { # prints why a backend is not built by auto; fails where it is
  local missing no_use
  missing=$(missing_line "$1")
  no_use=$(no_use_for "$1")
  if [ -n "$missing" ] && [ -n "$no_use" ]; then
    echo "no: $no_use; for another machine it would need $missing"
  elif [ -n "$missing" ]; then
    echo "no: it needs $missing"
  elif [ -n "$no_use" ]; then
    echo "no: $no_use; by name it is built for another machine"
  else
    return 1
  fi
}

choose_backends() {
  local backend
  [ -n "$auto" ] || return 0
  for backend in $ALL_BACKENDS; do
    if why_not "$backend" >/dev/null; then
      echo "$backend: $(why_not "$backend")"
    else
      backends="$backends $backend"
    fi
  done
  [ -n "$backends" ] || fail "nothing can be built here; see above"
}

require_tools() {
  local backend missing
  for backend in $backends; do
    missing=$(missing_line "$backend")
    [ -z "$missing" ] && continue
    if [ -n "$dry_run" ]; then
      echo "# $backend needs $missing"
    else
      fail "$backend needs $missing"
    fi
  done
}

run() {
  if [ -n "$dry_run" ]; then
    printf '%q ' "$@" && echo
  else
    "$@"
  fi
}

short_hash() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])'; }

this_cpu() { # what a native build is for
  if is_mac; then
    sysctl -n machdep.cpu.brand_string
  else
    grep -m2 -E '^(model name|flags|Features)' /proc/cpuinfo
  fi
}

build_id() { # changes with the source, the options, the tools and our table
  echo "${commit:0:12}-$({
    echo "$source_origin $1 $variant $cuda_arch"
    [ "$variant" != native ] || this_cpu
    toolchain_versions "$1"
    cat "$HERE/build/llama.cpp.cmake"
  } | short_hash)"
}

options_of() { # what CMake is told of a backend, one argument a line
  local flags="\"-ffile-prefix-map=$source_dir=llama.cpp\" \"-ffile-prefix-map=$tree=build\""
  # Paths of this machine stay out of the binaries, which makes equal sources equal files.
  printf '%s\n' -DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags" \
    "-DIOS_SOURCE_DIR=$source_dir" "-DIOS_BUILD_COMMIT=${commit:0:12}" "-DIOS_BACKEND=$1" "-DIOS_VARIANT=$variant"
  [ -z "$cuda_arch" ] || printf '%s\n' "-DCMAKE_CUDA_ARCHITECTURES=$cuda_arch"
  toolchain_arguments "$1"
  command -v ninja >/dev/null && printf '%s\n' -GNinja
  # A native build means something else on each machine that shares the cache.
  if [ "$variant" != native ] && command -v ccache >/dev/null; then
    printf '%s\n' -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    case "$1" in
      cuda) printf '%s\n' -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache ;;
      hip) printf '%s\n' -DCMAKE_HIP_COMPILER_LAUNCHER=ccache ;;
    esac
  fi
}

configure() {
  local line options=()
  while IFS= read -r line; do options+=("$line"); done <<END
$(options_of "$1")
END
  run mkdir -p "$project"
  [ -n "$dry_run" ] || printf 'cmake_minimum_required(VERSION 3.21)\nproject(ios_llama C CXX)\ninclude("%s")\n' \
    "$HERE/build/llama.cpp.cmake" >"$project/CMakeLists.txt"
  run env GIT_CEILING_DIRECTORIES="$(dirname "$source_dir")" cmake -Wno-dev -S "$project" -B "$tree" "${options[@]}" ||
    fail "cmake could not configure llama.cpp for $1; see above"
}

manifest() { # tries a build and writes down what it is, or checks one
  local command=$1 folder=$2
  shift 2
  (cd "$HERE" && "$python" -m scripts.engine_manifest "$command" "$folder" "$@")
}

manifest_of() { # the same for a fresh build of backend $1 in $2
  local line facts=()
  while IFS= read -r line; do facts+=("--option=$line"); done <<END
$(options_of "$1" | grep -v -e ccache -e prefix-map -e '^-G')
END
  manifest write "$2" --backend "$1" --build-id "$id" --commit "$commit" --source "$source_kind" \
    --repository "${repository:-$UPSTREAM}" --toolchain "$(toolchain_versions "$1")" --cmake "$(cmake --version | head -1)" "${facts[@]}"
}

switch_to() { # one rename: a daemon sees the old build or the new one, never none
  "$python" - "$prefix/$1" "$2" <<'END'
import os, sys
folder, build = sys.argv[1:]
link = os.path.join(folder, f".current-{os.getpid()}")
os.symlink(build, link)
os.replace(link, os.path.join(folder, "current"))
END
}

is_running() { # whether a process runs out of the build in $1
  local program
  for program in /proc/[0-9]*/exe; do
    case "$(readlink "$program" 2>/dev/null)" in "$1"/bin/*) return 0 ;; esac
  done
  return 1
}

forget_old_builds() { # of backend $1, but for the newest, current, pinned and running ones
  local number=0 old real
  real=$(cd "$prefix/$1" && pwd -P)
  for old in $(builds_of "$1"); do
    number=$((number + 1))
    [ "$number" -gt "$keep" ] || continue
    case "$old" in "$(link_of "$1" current)" | "$(link_of "$1" pinned)") continue ;; esac
    ! is_running "$real/$old" || continue
    echo "removing $prefix/$1/$old: $keep newer ones are there"
    rm -rf "${prefix:?}/$1/$old" "${prefix:?}/$1/$old.failed"
  done
}

forget_old_trees() { # object files of builds that nobody made for long
  # shellcheck disable=SC2012 # as above
  (cd "$work/trees" && ls -td -- "$1"-*) | tail -n "+$((keep + 1))" | while IFS= read -r old; do
    rm -rf "${work:?}/trees/$old"
  done
}

build() { # backend $1
  local id staging jobs=${told_jobs:-$(default_jobs "$1")}
  find_tools "$1"
  id=$(build_id "$1")
  tree=$work/trees/$1-$id project=$work/trees/$1-$id/project
  staging=$prefix/$1/.staging-$id
  if [ -n "$only_configure" ]; then
    fetch_source
    configure "$1"
    echo "configured: $tree"
    return
  fi
  if manifest check "$prefix/$1/$id" 2>/dev/null; then
    switch_to "$1" "$id"
    echo "up to date: $prefix/$1/$id"
    return
  fi
  rm -rf "${prefix:?}/$1"/.staging-* "${prefix:?}/$1"/.replaced-* # of builds that were killed; the lock is ours
  fetch_source
  configure "$1"
  touch "$tree"
  cmake --build "$tree" --parallel "$jobs" --target ios || fail "llama.cpp did not compile for $1; see above"
  cmake --install "$tree" --component ios --strip --prefix "$staging" || fail "cannot write into $prefix"
  if ! manifest_of "$1" "$staging"; then
    rm -rf "$staging"
    fail "the new llama-server for $1 is of no use here; $prefix/$1/current stays as it was"
  fi
  [ ! -e "$prefix/$1/$id" ] || mv "$prefix/$1/$id" "$prefix/$1/.replaced-$id" # damaged, or it would be up to date
  mv "$staging" "$prefix/$1/$id"
  rm -rf "${prefix:?}/$1/.replaced-$id" "${prefix:?}/$1/$id.failed"
  switch_to "$1" "$id"
  echo "built: $prefix/$1/$id"
  forget_old_builds "$1"
  forget_old_trees "$1"
}

find_tools() { # of a backend, into variables of this shell: missing_for ran in another
  case "$1" in
    vulkan) find_vulkan ;;
    cuda) find_cuda ;;
  esac
}

print_commands() {
  local backend jobs
  echo "# prefix: $prefix"
  fetch_source
  for backend in $backends; do
    find_tools "$backend"
    jobs=${told_jobs:-$(default_jobs "$backend")}
    tree=$work/trees/$backend project=$work/trees/$backend/project
    configure "$backend"
    run cmake --build "$tree" --parallel "$jobs" --target ios
    run cmake --install "$tree" --component ios --strip --prefix "$prefix/$backend/<build id>"
  done
}

main() {
  read_arguments "$@"
  if [ -n "$list" ]; then
    list_builds
    return
  fi
  work=$(build_folder)
  choose_backends
  require_tools
  python=$(find_python)
  python=${python:-python3}
  choose_source
  if [ -n "$dry_run" ]; then
    print_commands
    return
  fi
  local backend
  for backend in $backends; do
    mkdir -p "$prefix/$backend" || fail "cannot write into $prefix; --prefix DIR names another folder"
  done
  mkdir -p "$work/trees" "$work/source" || fail "cannot write into $work; INFERENCEOSD_BUILD_DIR names another folder"
  prefix=$(cd "$prefix" && pwd)
  work=$(cd "$work" && pwd)
  [ "$source_kind" = folder ] || source_dir=$work/source/$commit
  exec 8>"$prefix/.lock" 9>"$work/.lock"
  take_turn "$prefix" 8
  take_turn "$work" 9
  for backend in $backends; do
    build "$backend"
  done
}

main "$@"; exit # what is edited meanwhile is not read
