# trireme_foreign_object(OBJECT COMPILER compiler FLAGS flag... SOURCES file...)
#
# Compiles SOURCES as one file with a compiler other than the build's: for a fuzzer, or another CPU.
function(trireme_foreign_object object)
  cmake_parse_arguments(ARG "" "COMPILER" "FLAGS;SOURCES" ${ARGN})
  set(content "")
  foreach(source ${ARG_SOURCES})
    string(APPEND content "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${object}.cpp CONTENT "${content}")
  set(includes -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/tests)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/.deps/usr/include)
    list(APPEND includes -isystem ${PROJECT_SOURCE_DIR}/.deps/usr/include)
  endif()
  cmake_path(GET object FILENAME name)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${ARG_COMPILER} -std=c++20 ${ARG_FLAGS} ${includes} -MD -MF ${object}.d
            -c ${object}.cpp -o ${object}
    DEPENDS ${object}.cpp ${ARG_SOURCES} DEPFILE ${object}.d
    COMMENT "Building ${name} with ${ARG_COMPILER}" VERBATIM)
endfunction()
