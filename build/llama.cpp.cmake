# How llama-server is built: every option and its reason. scripts/build_backends.sh includes this from a CMakeLists.txt
# of its own, in a work folder. A project around llama.cpp, since upstream's `cmake --install` wants every target built.
#
#   IOS_SOURCE_DIR     unpacked llama.cpp; only read
#   IOS_BUILD_COMMIT   what `llama-server --version` tells
#   IOS_ONE_VARIANT    ON: one CPU library (AVX2 and newer) instead of one per CPU generation; half the time

cmake_minimum_required(VERSION 3.21)
project(ios_llama C CXX)

set(IOS_SOURCE_DIR "" CACHE PATH "unpacked llama.cpp")
set(IOS_BUILD_COMMIT unknown CACHE STRING "commit shown by --version")
option(IOS_ONE_VARIANT "one CPU library instead of one per CPU generation" OFF)

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
set(GGML_BACKEND_DL ON)            # a backend whose driver is missing is passed over, not fatal
set(GGML_NATIVE OFF)               # runs on other CPUs than this one
set(GGML_RPC ON)                   # layers on other hosts
set(GGML_CCACHE OFF)               # upstream's would be global; ours comes as the compiler launcher
if(IOS_ONE_VARIANT)
  set(GGML_CPU_ALL_VARIANTS OFF)
else()
  set(GGML_CPU_ALL_VARIANTS ON)    # chosen when it starts, by what the CPU can do
endif()

add_subdirectory(${IOS_SOURCE_DIR} llama.cpp EXCLUDE_FROM_ALL)

set(programs llama-server llama-fit-params llama-bench llama-gguf-split ggml-rpc-server)
set(libraries ggml-base ggml llama llama-common mtmd llama-server-impl llama-fit-params-impl llama-bench-impl)
add_custom_target(ios ALL DEPENDS ${programs} ${GGML_AVAILABLE_BACKENDS})

install(TARGETS ${programs} RUNTIME DESTINATION bin COMPONENT ios)
install(TARGETS ${libraries} ${GGML_AVAILABLE_BACKENDS} LIBRARY DESTINATION bin COMPONENT ios NAMELINK_SKIP)
install(FILES ${IOS_SOURCE_DIR}/LICENSE DESTINATION . RENAME LICENSE.llama.cpp COMPONENT ios)
