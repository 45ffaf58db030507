# Sourced by scripts/build_backends.sh: what each backend needs of this machine, and how to get it.
# shellcheck shell=bash disable=SC2034 # its variables are shared with that script

ALL_BACKENDS="cpu vulkan cuda hip metal"

is_mac() { [ "$(uname -s)" = Darwin ]; }

package() { # how to install: $1 on Debian and Ubuntu, $2 with Homebrew
  if is_mac; then echo "brew install $2"; else echo "apt install $1"; fi
}

needs() { # prints one line: what is missing, a tab, and how to get it
  printf '%s\t%s\n' "$1" "$2"
}

# What is missing to build a backend, one line each; nothing where it can be built.
missing_for() {
  command -v cmake >/dev/null || needs cmake "$(package cmake cmake)"
  command -v "${CXX:-c++}" >/dev/null || needs "a C++ compiler" "$(package g++ llvm)"
  command -v ninja >/dev/null || command -v make >/dev/null || needs make "$(package make make)"
  [ -n "$(find_python)" ] || needs "Python 3.11 with pip" "$(package python3-pip python)"
  "missing_for_$1"
}

missing_for_cpu() { :; }

missing_for_vulkan() {
  find_vulkan
  [ -n "$vulkan_library" ] || needs "the Vulkan loader" "$(package libvulkan1 vulkan-loader)"
  local newer="scripts/fetch_toolchain.sh vulkan; on Debian 13, Ubuntu 24.10 and newer: apt install libvulkan-dev glslc spirv-headers"
  is_mac && newer="brew install vulkan-headers shaderc spirv-headers"
  # The headers of Debian 12 and Ubuntu 24.04 lack what ggml-vulkan.cpp includes.
  grep -qs VK_EXT_layer_settings "$vulkan_headers/vulkan/vulkan_core.h" ||
    needs "Vulkan headers of 1.3.272 or newer" "$newer"
  [ -x "$vulkan_glslc" ] || needs "glslc" "$newer"
  [ -e "$vulkan_spirv/SPIRV-HeadersConfig.cmake" ] || needs "SPIR-V headers" "$newer"
}

missing_for_cuda() {
  if is_mac; then
    needs "a system that NVIDIA supports" "CUDA is for Linux; on a Mac build metal"
    return
  fi
  find_cuda
  [ -n "$cuda_nvcc" ] || needs "nvcc" "NVIDIA's CUDA toolkit, 12.8 or newer, with CUDA_PATH set to it; or scripts/fetch_toolchain.sh cuda"
  if [ -n "$cuda_nvcc" ] && [ -z "$(ls "$cuda_root"/lib64/libcublas.so "$cuda_root"/lib/*/libcublas.so /usr/lib/*/libcublas.so 2>/dev/null)" ]; then
    needs "cuBLAS of the toolkit at $cuda_root" "its package libcublas-dev; or scripts/fetch_toolchain.sh cuda"
  fi
}

missing_for_hip() {
  if is_mac; then
    needs "a system that AMD supports" "ROCm is for Linux; on a Mac build metal"
    return
  fi
  local rocm_root=${ROCM_PATH:-/opt/rocm} version name
  if [ ! -x "$rocm_root/llvm/bin/clang++" ]; then
    needs "ROCm 6.1 or newer at $rocm_root" "AMD's packages, or ROCM_PATH set to where it lies; those of Debian and Ubuntu are too old"
    return
  fi
  version=$(cut -d- -f1 "$rocm_root/.info/version" 2>/dev/null || echo 0)
  at_least 6.1 "$version" || needs "ROCm 6.1 or newer" "at $rocm_root is $version"
  for name in hipblas rocblas; do
    [ -d "$rocm_root/lib/cmake/$name" ] || needs "$name" "AMD's package $name-dev"
  done
}

missing_for_metal() {
  if ! is_mac; then
    needs "a Mac" "Metal is a part of macOS"
    return
  fi
  xcrun --find clang >/dev/null 2>&1 || needs "Xcode's command line tools" "xcode-select --install"
}

at_least() { # whether version $2 is $1 or newer, by its first two numbers
  local wanted=${1%%.*} have=${2%%.*} wanted_minor have_minor
  wanted_minor=$(echo "$1.0" | cut -d. -f2)
  have_minor=$(echo "$2.0" | cut -d. -f2)
  case "$have$have_minor" in *[!0-9]*) return 1 ;; esac
  [ "$have" -gt "$wanted" ] || { [ "$have" -eq "$wanted" ] && [ "$have_minor" -ge "$wanted_minor" ]; }
}

# Why this machine would have no use for a backend; nothing where it has.
no_use_for() {
  case "$1" in
    vulkan) is_mac || ls /dev/dri/renderD* >/dev/null 2>&1 || echo "no graphics device in /dev/dri" ;;
    cuda) [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || echo "no NVIDIA card with its driver" ;;
    hip) [ -e /dev/kfd ] || echo "no AMD card with its compute driver (/dev/kfd)" ;;
  esac
}

first_file() { # the first of its arguments that is there
  local path
  for path in "$@"; do
    if [ -e "$path" ]; then
      echo "$path"
      return
    fi
  done
}

# Sets vulkan_headers, vulkan_glslc, vulkan_spirv (its CMake folder) and vulkan_library: the fetched tools before
# the LunarG SDK before the system's.
find_vulkan() {
  local fetched
  fetched=$(build_folder)/toolchains/vulkan
  vulkan_headers=/usr/include vulkan_glslc=$(command -v glslc || true) vulkan_spirv=''
  if [ -d "$fetched" ]; then
    vulkan_headers=$fetched/root/usr/include vulkan_glslc=$fetched/glslc
    vulkan_spirv=$fetched/root/usr/share/cmake/SPIRV-Headers
  elif [ -n "${VULKAN_SDK:-}" ]; then
    vulkan_headers=$VULKAN_SDK/include vulkan_glslc=$VULKAN_SDK/bin/glslc
    vulkan_spirv=$(dirname "$(first_file "$VULKAN_SDK"/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake /)")
  fi
  [ -n "$vulkan_spirv" ] || vulkan_spirv=$(dirname "$(first_file \
    /usr/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake /opt/homebrew/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake \
    /usr/local/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake /)")
  if is_mac && [ ! -d "$fetched" ] && [ -z "${VULKAN_SDK:-}" ]; then
    vulkan_headers=$(first_file /opt/homebrew/include /usr/local/include)
  fi
  vulkan_library=$(first_file "${VULKAN_SDK:-/nonexistent}"/lib/libvulkan.so "${VULKAN_SDK:-/nonexistent}"/lib/libvulkan.dylib \
    /usr/lib/*/libvulkan.so /usr/lib/*/libvulkan.so.1 /usr/lib64/libvulkan.so.1 /usr/lib/libvulkan.so.1 \
    /opt/homebrew/lib/libvulkan.dylib /usr/local/lib/libvulkan.dylib)
}

# Sets cuda_nvcc, cuda_root and cuda_is_fetched: CUDA_PATH before the fetched tools before the system's.
find_cuda() {
  local fetched
  fetched=$(build_folder)/toolchains/cuda/nvidia/cu13
  cuda_is_fetched='' cuda_root=''
  if [ -x "${CUDA_PATH:-/nonexistent}/bin/nvcc" ]; then
    cuda_root=$CUDA_PATH
  elif [ -x "$fetched/bin/nvcc" ]; then
    cuda_root=$fetched cuda_is_fetched=yes
  elif [ -x /usr/local/cuda/bin/nvcc ]; then
    cuda_root=/usr/local/cuda
  elif command -v nvcc >/dev/null; then
    cuda_root=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  fi
  cuda_nvcc=${cuda_root:+$cuda_root/bin/nvcc}
}

# What a build depends on beside the source and our own table: other tools make another build.
toolchain_versions() {
  "${CXX:-c++}" --version
  uname -sm
  case "$1" in
    vulkan) "$vulkan_glslc" --version && grep -hs 'define VK_HEADER_VERSION ' "$vulkan_headers/vulkan/vulkan_core.h" ;;
    cuda) "$cuda_nvcc" --version ;;
    hip) cat "${ROCM_PATH:-/opt/rocm}/.info/version" ;;
    metal) xcrun --show-sdk-version ;;
  esac
}

# Arguments of CMake for a backend, one a line.
toolchain_arguments() {
  case "$1" in
    vulkan)
      printf '%s\n' "-DVulkan_INCLUDE_DIR=$vulkan_headers" "-DVulkan_GLSLC_EXECUTABLE=$vulkan_glslc" \
        "-DVulkan_LIBRARY=$vulkan_library" "-DSPIRV-Headers_DIR=$vulkan_spirv" ;;
    cuda)
      printf '%s\n' "-DCMAKE_CUDA_COMPILER=$cuda_nvcc" "-DCUDAToolkit_ROOT=$cuda_root" \
        "-DIOS_BUNDLE_CUDA=$([ -n "$cuda_is_fetched" ] && echo ON || echo OFF)" ;;
    hip) printf '%s\n' "-DCMAKE_HIP_COMPILER=${ROCM_PATH:-/opt/rocm}/llvm/bin/clang++" ;;
  esac
}

# GiB of memory that one compiler takes at most: Vulkan's matrix shaders need most.
gib_per_job() {
  case "$1" in
    vulkan) echo 3 ;;
    hip) echo 2 ;;
    *) echo 1 ;;
  esac
}

default_jobs() { # one per core, but its memory for each and 1 GiB for the rest of the machine
  local cores kib by_memory
  if [ -r /proc/meminfo ]; then
    cores=$(nproc)
    kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  else
    cores=$(sysctl -n hw.ncpu)
    kib=$(($(sysctl -n hw.memsize) / 2048)) # half of it: macOS has no figure for what is available
  fi
  by_memory=$(((kib - 1048576) / (1048576 * $(gib_per_job "$1"))))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}
