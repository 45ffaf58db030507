#!/usr/bin/env bash
# Lays a backend's build tools into a folder of their own, where scripts/build_backends.sh finds them: nothing is
# installed, no system file changes. For systems whose packages are too old or not there. Works with bash 3.2.
set -euo pipefail

usage() {
  cat <<'END'
Usage: scripts/fetch_toolchain.sh vulkan | cuda

  vulkan   Vulkan headers, SPIR-V headers and glslc of Debian 13, unpacked (on Debian 12; needs apt, no root)
  cuda     nvcc, the CUDA runtime and cuBLAS 13.0, out of Python packages (Linux on x86-64; 1 GB; needs pip)

They go into toolchains/ of the build folder: INFERENCEOSD_BUILD_DIR, or inferenceosd/build in the cache folder.
Exit codes: 0 there, 1 failed, 2 bad arguments.
END
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PROGRAM=fetch_toolchain.sh
# shellcheck source=build/folders.sh
. "$HERE/build/folders.sh"

VULKAN_RELEASE=trixie
# glslc of that release is linked to its own libc; the rest is text.
VULKAN_PACKAGES="glslc libshaderc1 libvulkan-dev spirv-headers libc6 libstdc++6 libgcc-s1"
# What the kernels call of the driver: linked to a stand-in, since the packages carry none.
CUDA_DRIVER_CALLS="cuDeviceGet cuDeviceGetAttribute cuGetErrorString cuMemAddressFree cuMemAddressReserve cuMemCreate
  cuMemGetAllocationGranularity cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap"

debian_mirror() { # the one this machine's own apt reads Debian from
  # shellcheck disable=SC2016 # they are apt's own names
  apt-get indextargets --format '$(ORIGIN)|$(COMPONENT)|$(REPO_URI)' 2>/dev/null |
    awk -F'|' '$1 == "Debian" && $2 == "main" && $3 !~ /security/ {print $3; exit}'
}

fetch_vulkan() {
  local mirror package
  command -v apt-get >/dev/null || fail "the Vulkan tools are unpacked out of Debian packages, and there is no apt here"
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || fail "apt has no list of Debian packages; run: apt-get update"
  mkdir -p "$fresh/root" "$fresh/apt/lists/partial" "$fresh/apt/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $VULKAN_RELEASE main" >"$fresh/apt/sources.list"
  cat >"$fresh/apt/apt.conf" <<END
Dir::Etc::sourcelist "$fresh/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$fresh/apt/lists";
Dir::Cache "$fresh/apt/cache";
APT::Sandbox::User "";
END
  export APT_CONFIG=$fresh/apt/apt.conf
  apt-get update --quiet=2 || fail "apt could not read the package lists of Debian $VULKAN_RELEASE"
  # shellcheck disable=SC2086 # one word each
  (cd "$fresh/apt" && apt-get download --quiet=2 $VULKAN_PACKAGES) || fail "apt could not fetch $VULKAN_PACKAGES"
  for package in "$fresh"/apt/*.deb; do
    dpkg --extract "$package" "$fresh/root"
  done
  rm -rf "$fresh/apt"
  # Found by its own place, so that the folder may be moved.
  cat >"$fresh/glslc" <<'END'
#!/bin/sh
root=$(dirname "$0")/root
for loader in "$root"/usr/lib/*/ld-linux-*.so.* "$root"/usr/lib64/ld-linux-*.so.*; do
  [ -e "$loader" ] && break
done
libraries=$(dirname "$(ls "$root"/usr/lib/*/libshaderc.so.1)")
exec "$loader" --library-path "$libraries" "$root/usr/bin/glslc" "$@"
END
  chmod +x "$fresh/glslc"
  "$fresh/glslc" --version >/dev/null || fail "the glslc of Debian $VULKAN_RELEASE does not run here"
}

fetch_cuda() {
  local toolkit library call python
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "the CUDA packages are for Linux on x86-64"
  python=$(find_python)
  [ -n "$python" ] || fail "the CUDA tools come out of Python packages, and there is no Python with pip here"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes --only-binary :all: \
    --target "$fresh" --requirement "$HERE/requirements/cuda-toolkit.txt" || fail "pip could not fetch the CUDA packages"
  toolkit=$fresh/nvidia/cu13
  [ -x "$toolkit/bin/nvcc" ] || fail "the CUDA packages hold no nvcc"
  ln -sfn lib "$toolkit/lib64"
  for library in cudart cublas cublasLt; do
    ln -sf "lib$library.so.13" "$toolkit/lib/lib$library.so"
  done
  mkdir -p "$toolkit/lib/stubs"
  for call in $CUDA_DRIVER_CALLS; do echo "void $call(void) {}"; done |
    "${CC:-cc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$toolkit/lib/stubs/libcuda.so" -x c - ||
    fail "a stand-in of NVIDIA's driver library cannot be compiled; is there a C compiler?"
}

main() {
  case "${1:-}" in
    vulkan | cuda) ;;
    -h | --help) usage; exit 0 ;;
    *) bad "name what to fetch: vulkan or cuda" ;;
  esac
  [ $# = 1 ] || bad "one at a time"
  local target
  target=$(build_folder)/toolchains/$1
  mkdir -p "$(dirname "$target")" || fail "cannot write into $(build_folder); INFERENCEOSD_BUILD_DIR names another folder"
  exec 9>"$(dirname "$target")/.lock"
  take_turn "$(dirname "$target")" 9
  if [ -e "$target" ]; then
    echo "there already: $target"
    return
  fi
  fresh=$target.new
  trap 'rm -rf "$fresh"' EXIT
  rm -rf "$fresh" # of a fetch that was killed; the lock is ours
  mkdir "$fresh"
  case "$1" in
    vulkan) fetch_vulkan ;;
    cuda) fetch_cuda ;;
  esac
  mv "$fresh" "$target"
  echo "fetched: $target"
}

main "$@"; exit # what is edited meanwhile is not read
