# Runs at `cmake --install`: installs the public headers and, because C++ needs them to compile, the
# headers that these include, directly or through others. Nothing else of trireme/ is installed.
# TRIREME_SOURCE_DIR and TRIREME_INCLUDE_DIR (the destination) are set by trireme_install.cmake.
cmake_policy(VERSION 3.25)
include(${TRIREME_SOURCE_DIR}/cmake/trireme_public_headers.cmake)

set(waiting ${TRIREME_PUBLIC_HEADERS})
set(found "")
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST found)
    continue()
  endif()
  list(APPEND found ${header})
  file(STRINGS ${TRIREME_SOURCE_DIR}/${header} includes REGEX "^#include \"trireme/.*\"")
  foreach(line ${includes})
    string(REGEX REPLACE "^#include \"(.*)\".*$" "\\1" included "${line}")
    list(APPEND waiting ${included})
  endforeach()
endwhile()

foreach(header ${found})
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL ${TRIREME_SOURCE_DIR}/${header} DESTINATION ${TRIREME_INCLUDE_DIR}/${folder})
endforeach()
