# How everything is compiled: the standard, the warnings, and the tools that are used if they are installed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for editors, and for the test that compiles each public header
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

# -fPIC for programs too: all of them can then share one precompiled header.
add_compile_options(-fPIC -Wall -Wextra -Wshadow)
# Warnings are errors with the compiler that CI uses; a newer one may warn about fmt, which must not
# stop a build.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Werror)
endif()

# In a unity build the sources look like headers to the compiler, which then warns about types that
# have members from unnamed namespaces. The preset `dev` compiles each source separately.
if(CMAKE_UNITY_BUILD)
  add_compile_options(-Wno-subobject-linkage)
endif()

set(TRIREME_SANITIZE "" CACHE STRING "sanitizers to build with, as in -fsanitize=")
if(TRIREME_SANITIZE)
  add_compile_options(-fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TRIREME_SANITIZE})
endif()

# Code that does little work is optimized less and compiles in half the time: layers that are COLD,
# and programs that only call them (QUICK).
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(TRIREME_COLD -O1)
  set(TRIREME_QUICK -O0)
  if(TRIREME_SANITIZE)
    set(TRIREME_QUICK -O1)
  endif()
endif()

# With a precompiled header of 700 MB gcc collects garbage all the time. Without that it takes 10 %
# less time and 10 % more memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("SHELL:--param ggc-min-heapsize=4194304")
endif()

find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE)
  # ccache caches sources that use a precompiled header only with these settings.
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

# Linking libtorch takes much memory: at most two links run at once.
set_property(GLOBAL PROPERTY JOB_POOLS link=2)
set(CMAKE_JOB_POOL_LINK link)
