# How everything is compiled: the standard, the warnings, and the tools that are used when they are there.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

# -fPIC for programs too: all of them can then share one precompiled header.
add_compile_options(-fPIC -Wall -Wextra -Wshadow)
# Warnings are errors on the compiler that CI has; another's opinion of fmt must not stop a build.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Werror)
endif()

# Sources that are compiled together look like headers to the compiler, which then warns that their
# types hold others of unnamed namespaces. The preset `dev` compiles each by itself.
if(CMAKE_UNITY_BUILD)
  add_compile_options(-Wno-subobject-linkage)
endif()

set(TRIREME_SANITIZE "" CACHE STRING "sanitizers to build with, as in -fsanitize=")
if(TRIREME_SANITIZE)
  add_compile_options(-fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TRIREME_SANITIZE})
endif()

# What does little work is optimized less, and compiles in half the time: layers that are COLD, and
# programs that only call them (QUICK).
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(TRIREME_COLD -O1)
  set(TRIREME_QUICK -O0)
  if(TRIREME_SANITIZE)
    set(TRIREME_QUICK -O1)
  endif()
endif()

find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE)
  # A precompiled header only caches when ccache is told how far it may trust it.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime
      ${TRIREME_CCACHE})
endif()

find_program(TRIREME_MOLD mold)
find_program(TRIREME_LLD ld.lld)
if(TRIREME_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(TRIREME_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# Two links of libtorch at once are fine; more only fight for memory.
set_property(GLOBAL PROPERTY JOB_POOLS link=2)
set(CMAKE_JOB_POOL_LINK link)
