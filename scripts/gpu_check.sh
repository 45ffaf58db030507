#!/usr/bin/env bash
# Builds the CUDA engine on a machine with an NVIDIA GPU, where nothing can be fetched, and runs `-m gpu` tests with it.
set -euo pipefail

usage() {
  cat <<'END'
Usage: scripts/gpu_check.sh pack FOLDER [PYTHON_VERSION]   here: what the other machine needs, some 20 MB
       scripts/gpu_check.sh run FOLDER                     there: in a copy of this repository

pack wants the source that scripts/build_backends.sh has fetched (any build, or --configure, does that). run needs the GPU's
driver, CUDA's toolkit with cuBLAS, cmake, a C++ compiler and Python of the version packed for (default: 3.12).
END
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PROGRAM=gpu_check.sh
# shellcheck source=build/folders.sh
. "$HERE/build/folders.sh"

# What no CUDA build reads: more than half of the tree.
LEFT_OUT="docs examples tests models media benches gguf-py conversion scripts .github .devops .git ggml/src/ggml-sycl
  ggml/src/ggml-opencl ggml/src/ggml-hexagon ggml/src/ggml-webgpu ggml/src/ggml-openvino ggml/src/ggml-cann
  ggml/src/ggml-et ggml/src/ggml-metal ggml/src/ggml-vulkan ggml/src/ggml-virtgpu"

pins() { # of the files, all packages of the first two and of the last one those that run tests
  awk '/^[A-Za-z]/ {name = $0; sub(/[=;[ ].*/, "", name)
      keep = FILENAME !~ /dev.txt$/ || name ~ /^(pytest|pytest-asyncio|pytest-timeout|pluggy|iniconfig|packaging|pygments)$/
      if (seen[name]++) keep = 0}
    keep' "$@"
}

pack() {
  local folder=$1 version=$2 source python name options=()
  source=$(find "$(build_folder)/source" -mindepth 1 -maxdepth 1 -type d ! -name '*.new' 2>/dev/null | head -1)
  [ -n "$source" ] || fail "no source yet: scripts/build_backends.sh cpu --configure fetches it"
  python=$(find_python)
  [ -n "$python" ] || fail "there is no Python with pip here"
  mkdir -p "$folder/wheels"
  for name in $LEFT_OUT; do options+=(--exclude "./$name"); done
  XZ_OPT=-3 tar -C "$source" "${options[@]}" -cJf "$folder/llama.cpp.tar.xz" .
  pins "$HERE"/requirements/runtime.txt "$HERE"/requirements/build.txt "$HERE"/requirements/dev.txt >"$folder/requirements.txt"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$version" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$folder/wheels" --require-hashes --requirement "$folder/requirements.txt" || fail "pip could not fetch the packages"
  du -sh "$folder"
}

check() {
  local folder=$1 site
  [ -f "$folder/llama.cpp.tar.xz" ] || fail "$folder holds nothing that was packed"
  command -v nvidia-smi >/dev/null || fail "there is no NVIDIA driver here (nvidia-smi is missing)"
  site=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX")
  # shellcheck disable=SC2064 # as it is now
  trap "rm -rf '$site'" EXIT
  python3 -m venv --system-site-packages "$site/venv"
  "$site/venv/bin/python" -m pip install --quiet --no-index --no-deps "$folder"/wheels/*.whl
  "$site/venv/bin/python" -m pip install --quiet --no-index --no-deps --no-build-isolation --editable "$HERE"
  mkdir "$site/source"
  tar -C "$site/source" -xJf "$folder/llama.cpp.tar.xz"
  export LLAMA_CPP_SOURCE=$site/source INFERENCEOSD_BUILD_DIR=$site/build PYTHON=$site/venv/bin/python
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  cd "$HERE"
  "$site/venv/bin/python" -m pytest -m gpu -s -o faulthandler_timeout=0 -o addopts="--strict-markers --import-mode=importlib" \
    tests/gpu
}

main() {
  case "${1:-}" in
    pack) [ $# -ge 2 ] || bad "name a folder"; pack "$2" "${3:-3.12}" ;;
    run) [ $# = 2 ] || bad "name the packed folder"; check "$(cd "$2" && pwd)" ;;
    -h | --help) usage ;;
    *) bad "say pack or run" ;;
  esac
}

main "$@"; exit # what is edited meanwhile is not read
