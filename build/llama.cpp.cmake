# How llama-server is built: every option of every backend, and its reason. scripts/build_backends.sh includes this from
# a CMakeLists.txt of its own, in a work folder. A project around llama.cpp, since upstream's `cmake --install` wants
# every target built.
#
#   IOS_SOURCE_DIR     unpacked llama.cpp; only read
#   IOS_BUILD_COMMIT   what `llama-server --version` tells
#   IOS_BACKEND        cpu, vulkan, cuda, hip or metal; the CPU is part of each
#   IOS_VARIANT        portable: one CPU library per CPU generation, chosen when it starts
#                      one: a single one, for AVX2 and newer; half the time to build, for developers
#                      native: for this very machine and no other
#   IOS_BUNDLE_CUDA    ON: CUDA's own libraries go along, where the loader of this machine would not find them

cmake_minimum_required(VERSION 3.21)
project(ios_llama C CXX)

set(IOS_SOURCE_DIR "" CACHE PATH "unpacked llama.cpp")
set(IOS_BUILD_COMMIT unknown CACHE STRING "commit shown by --version")
set(IOS_BACKEND cpu CACHE STRING "which devices it is for")
set(IOS_VARIANT portable CACHE STRING "for which processors")
option(IOS_BUNDLE_CUDA "install CUDA's libraries beside the program" OFF)

foreach(known "IOS_BACKEND;cpu vulkan cuda hip metal" "IOS_VARIANT;portable one native")
  list(GET known 0 name)
  list(GET known 1 values)
  string(REPLACE " " ";" values "${values}")
  if(NOT ${name} IN_LIST values)
    message(FATAL_ERROR "${name} is '${${name}}'; known are: ${values}")
  endif()
endforeach()

# Left alone, ggml asks git, which walks up from the source and answers with whatever repository encloses it.
set(GIT_EXE OFF CACHE STRING "never ask git" FORCE)
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT ${IOS_BUILD_COMMIT})

# One folder holds it all and may be moved: libraries are found beside the program, backends must lie there anyway.
if(APPLE)
  set(CMAKE_INSTALL_RPATH "@loader_path")
else()
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# As a sub-project llama.cpp builds nothing by default.
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_BUILD_TOOLS ON)
set(LLAMA_BUILD_SERVER ON)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP OFF)           # one program with all tools in it: not used
set(LLAMA_BUILD_UI OFF)            # the daemon is the front door
set(LLAMA_USE_PREBUILT_UI OFF)     # would be fetched
set(LLAMA_OPENSSL OFF)             # children listen on Unix sockets and download nothing
set(LLAMA_TOOLS_INSTALL OFF)       # the install rules below replace upstream's
set(LLAMA_ALL_WARNINGS OFF)        # 30 000 lines of false positives from gcc 12's AVX-512 headers

set(BUILD_SHARED_LIBS ON)
set(GGML_RPC ON)                   # layers on other hosts
set(GGML_CCACHE OFF)               # upstream's would be global; ours comes as the compiler launcher

# The processor.
set(GGML_BACKEND_DL ON)            # a backend whose driver is missing is passed over, not fatal
set(GGML_NATIVE OFF)
set(GGML_CPU_ALL_VARIANTS OFF)
if(IOS_VARIANT STREQUAL portable)
  set(GGML_CPU_ALL_VARIANTS ON)    # chosen when it starts, by what the CPU can do
elseif(IOS_VARIANT STREQUAL native)
  set(GGML_NATIVE ON)
  set(GGML_BACKEND_DL OFF)         # ggml allows no native build of libraries that are chosen at run time
endif()

# The devices. Each is said outright: ggml's defaults differ by system, and a build is for one backend.
set(GGML_VULKAN OFF)
set(GGML_CUDA OFF)
set(GGML_HIP OFF)
set(GGML_METAL OFF)                # upstream's default on a Mac is ON

if(IOS_BACKEND STREQUAL vulkan)
  set(GGML_VULKAN ON)

elseif(IOS_BACKEND STREQUAL cuda)
  set(GGML_CUDA ON)
  set(GGML_CUDA_NCCL OFF)          # for several processes of one job; a child is one
  set(GGML_CUDA_FA ON)             # half an hour less to build without it, and no quantized KV cache
  find_package(CUDAToolkit REQUIRED)
  if(IOS_BUNDLE_CUDA)
    foreach(name cudart cublas cublasLt)
      set(file ${CUDAToolkit_LIBRARY_DIR}/lib${name}.so.${CUDAToolkit_VERSION_MAJOR})
      file(REAL_PATH ${file} real)
      install(FILES ${real} DESTINATION bin RENAME lib${name}.so.${CUDAToolkit_VERSION_MAJOR} COMPONENT ios)
    endforeach()
  else()
    list(APPEND CMAKE_INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR}) # children get no LD_LIBRARY_PATH
  endif()
  if(IOS_VARIANT STREQUAL native AND NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES native)
  elseif(NOT CMAKE_CUDA_ARCHITECTURES)
    # virtual: compiled by the driver on its first run, for this and all later cards; real: ready made.
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-virtual 86-real) # Turing, A100, GeForce 30
    if(CUDAToolkit_VERSION VERSION_LESS 13)
      list(PREPEND CMAKE_CUDA_ARCHITECTURES 50-virtual 61-virtual 70-virtual) # CUDA 13 knows them no more
    endif()
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 11.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 89-real 90-virtual) # GeForce 40, H100
    endif()
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 120a-real) # GeForce 50; FP4 needs the "a"
    endif()
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.9)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 121a-real) # DGX Spark
    endif()
  endif()

elseif(IOS_BACKEND STREQUAL hip)
  set(GGML_HIP ON)
  set(GGML_HIP_RCCL OFF)           # as NCCL
  if(NOT GPU_TARGETS AND NOT IOS_VARIANT STREQUAL native)
    # MI50, MI100, MI200, MI300, then Radeon RX 6000, 7000 and 9000
    set(GPU_TARGETS gfx906 gfx908 gfx90a gfx942 gfx1030 gfx1100 gfx1101 gfx1102 gfx1200 gfx1201)
  endif()

elseif(IOS_BACKEND STREQUAL metal)
  if(NOT APPLE)
    message(FATAL_ERROR "Metal is a part of macOS: this build needs a Mac")
  endif()
  set(GGML_METAL ON)
  set(GGML_METAL_EMBED_LIBRARY ON) # the kernels inside the library: nothing to be found at run time
endif()

add_subdirectory(${IOS_SOURCE_DIR} llama.cpp EXCLUDE_FROM_ALL)

set(programs llama-server llama-fit-params llama-bench llama-gguf-split ggml-rpc-server)
set(libraries ggml-base ggml llama llama-common mtmd llama-server-impl llama-fit-params-impl llama-bench-impl)
set(backends ${GGML_AVAILABLE_BACKENDS})
# It is chosen by CPUID alone, and its first tile (AMX) is a SIGILL where the kernel gives no leave to use them, as in
# sandboxes: all of the portable build would be of no use there. A native build has tiles.
list(REMOVE_ITEM backends ggml-cpu-sapphirerapids)
add_custom_target(ios ALL DEPENDS ${programs} ${backends})
message(STATUS "ios: backends ${backends}")

install(TARGETS ${programs} RUNTIME DESTINATION bin COMPONENT ios)
install(TARGETS ${libraries} ${backends} LIBRARY DESTINATION bin COMPONENT ios NAMELINK_SKIP)
install(FILES ${IOS_SOURCE_DIR}/LICENSE DESTINATION . RENAME LICENSE.llama.cpp COMPONENT ios)
