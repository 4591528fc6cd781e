# The dependencies of the build. Headers may be in .deps: scripts/setup unpacks Debian packages there
# when it is not root.
list(PREPEND CMAKE_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps/usr)
if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/.deps/usr/include)
  include_directories(SYSTEM ${PROJECT_SOURCE_DIR}/.deps/usr/include)
  include_directories(SYSTEM ${PROJECT_SOURCE_DIR}/.deps/usr/include/x86_64-linux-gnu)
endif()

# libtorch: CMAKE_PREFIX_PATH, then TORCH_DIR, then the torch of python3, then the venv that
# scripts/setup makes inside the checkout.
if(DEFINED ENV{TORCH_DIR} AND NOT TORCH_DIR)
  set(TORCH_DIR $ENV{TORCH_DIR})
endif()
if(TORCH_DIR)
  list(APPEND CMAKE_PREFIX_PATH ${TORCH_DIR})
endif()
# Its package warns about libkineto.a, a profiler that the wheels do not bring and nothing here needs.
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch QUIET CONFIG)
if(NOT Torch_FOUND)
  foreach(python python3 ${PROJECT_SOURCE_DIR}/.venv/bin/python3)
    execute_process(COMMAND ${python} -c "import torch; print(torch.utils.cmake_prefix_path)"
                    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(torch_prefix)
      list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
      break()
    endif()
  endforeach()
  find_package(Torch REQUIRED CONFIG)
endif()
unset(CMAKE_MESSAGE_LOG_LEVEL)
# Torch's flags only select the C++ ABI that it was built with; its targets carry the rest.
add_compile_options(${TORCH_CXX_FLAGS})
# A libtorch for CUDA contains an older libstdc++ and exports some of its functions, std::filesystem
# among them, which crash when they are called instead of the system's. The linker takes a symbol from
# the first library that has it, so the system's library comes first in every program (and, through
# trireme_all, in a consumer's). Where libstdc++ is only an archive, the linker takes from it what it
# misses at that point, so these two names make it miss all of std::filesystem (fs_ops.o, fs_dir.o).
set(trireme_own_filesystem
  LINKER:--undefined=_ZNSt10filesystem18create_directoriesERKNS_7__cxx114pathE
  LINKER:--undefined=_ZNSt10filesystem7__cxx1118directory_iteratorppEv)
link_libraries(stdc++)
add_link_options(${trireme_own_filesystem})
# Our loops run on libtorch's threads, so they need the OpenMP library that it loads, and no second one:
# that of its own folder, if it has one.
file(GLOB TRIREME_OPENMP ${TORCH_INSTALL_PREFIX}/lib/libgomp*.so* ${TORCH_INSTALL_PREFIX}/lib/lib*omp5*.so*)
if(TRIREME_OPENMP)
  list(GET TRIREME_OPENMP 0 TRIREME_OPENMP)
else()
  find_package(OpenMP QUIET COMPONENTS CXX)
  set(TRIREME_OPENMP ${OpenMP_CXX_LIBRARIES})
endif()
if(NOT TRIREME_OPENMP)
  message(STATUS "Trireme: no OpenMP library; a rank computes some layers on one thread only")
endif()
message(STATUS "Trireme: libtorch ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX}")

find_package(Threads REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
find_package(CURL QUIET)  # only to speak to etcd
if(NOT CURL_FOUND)
  message(STATUS "Trireme: no libcurl; parameter servers cannot keep their manager's log in etcd (scripts/setup installs it)")
endif()
# Only to read compressed data files and images.
find_package(ZLIB QUIET)
find_package(JPEG QUIET)
find_package(PNG QUIET)
foreach(library ZLIB JPEG PNG)
  if(NOT ${library}_FOUND)
    message(STATUS "Trireme: no ${library}; data in its format cannot be read (scripts/setup installs it)")
  endif()
endforeach()
find_path(TRIREME_PCRE2_HEADERS pcre2.h)  # only for split patterns of tokenizers that are not the well-known ones
find_library(TRIREME_PCRE2_LIBRARY pcre2-8)
if(NOT TRIREME_PCRE2_HEADERS OR NOT TRIREME_PCRE2_LIBRARY)
  message(STATUS "Trireme: no PCRE2; tokenizers with a split pattern of their own cannot be used (scripts/setup installs it)")
endif()
enable_language(C)
find_package(MPI QUIET COMPONENTS C)  # only for the benchmark against Open MPI

# Header-only libraries, found by their main header in the system or in .deps. We use fmt header-only
# too: libtorch brings the headers of another fmt, which are found first where torch is included, but
# no library for them.
function(trireme_header_only name header)
  find_path(TRIREME_${name}_HEADERS ${header} PATHS ${PROJECT_SOURCE_DIR}/.deps/usr/include)
  if(NOT TRIREME_${name}_HEADERS)
    message(FATAL_ERROR "Trireme: <${header}> is missing; run scripts/setup")
  endif()
  add_library(trireme_${name} INTERFACE)
  target_compile_definitions(trireme_${name} INTERFACE ${ARGN})
  install(TARGETS trireme_${name} EXPORT TriremeTargets)
endfunction()
trireme_header_only(fmt fmt/format.h FMT_HEADER_ONLY)
trireme_header_only(json nlohmann/json.hpp)
trireme_header_only(cli11 CLI/CLI.hpp CLI11_HAS_FILESYSTEM=0)  # see stdc++ above
trireme_header_only(toml toml++/toml.h TOML_HEADER_ONLY=1)
trireme_header_only(xxhash xxhash.h XXH_INLINE_ALL)
