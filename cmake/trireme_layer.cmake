# trireme_layer(NAME USES other... [TORCH] [PCH layer] [COLD] [LINKS target...])
#
# Each folder of trireme/ is one layer and one static library. USES names the layers that it may
# include; tests/unit/architecture_test.cpp reads these calls and the #include lines and fails for
# any other. A layer without TORCH sees no torch header and links no torch library. COLD: nothing in it
# runs often enough to need more than -O1, which compiles in half the time.
set_property(GLOBAL PROPERTY TRIREME_LAYERS "")

function(trireme_layer name)
  cmake_parse_arguments(ARG "TORCH;COLD" "PCH" "USES;LINKS" ${ARGN})
  set(target trireme_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  add_library(${target} STATIC ${sources})
  add_library(Trireme::${name} ALIAS ${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  foreach(layer ${ARG_USES})
    target_link_libraries(${target} PUBLIC trireme_${layer})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ARG_LINKS})
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC torch)
  endif()
  if(ARG_PCH)
    target_precompile_headers(${target} REUSE_FROM trireme_${ARG_PCH})
  endif()
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE ${TRIREME_COLD})
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY TRIREME_LAYERS ${name})
endfunction()

# trireme_program(NAME SOURCES file... USES layer... [LINKS target...] [PCH name] [QUICK])
#
# PCH: the target whose precompiled header it shares. QUICK: compiles without optimization, in half
# the time, for tests and examples that only call the library.
function(trireme_program name)
  cmake_parse_arguments(ARG "QUICK" "PCH" "SOURCES;USES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  foreach(layer ${ARG_USES})
    target_link_libraries(${name} PRIVATE trireme_${layer})
  endforeach()
  target_link_libraries(${name} PRIVATE ${ARG_LINKS})
  if(ARG_QUICK)
    target_compile_options(${name} PRIVATE ${TRIREME_QUICK})
  endif()
  if(ARG_PCH)
    target_precompile_headers(${name} REUSE_FROM ${ARG_PCH})
  endif()
endfunction()

# trireme_test(NAME USES layer... SOURCES file... [LINKS target...] [PCH] [LABELS label...]
#              [TIMEOUT seconds] [ENVIRONMENT VAR=value...] [NEEDS program...])
#
# Keep executables few: loading libtorch takes longer than most tests. Each is one ctest entry.
function(trireme_test name)
  cmake_parse_arguments(ARG "PCH" "TIMEOUT" "SOURCES;USES;LINKS;LABELS;ENVIRONMENT;NEEDS" ${ARGN})
  set(pch "")
  if(ARG_PCH)
    set(pch PCH trireme_torch_pch)
  endif()
  trireme_program(${name} SOURCES ${ARG_SOURCES} USES ${ARG_USES}
                  LINKS ${ARG_LINKS} GTest::gmock GTest::gtest QUICK ${pch})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                             TRIREME_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1200)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
                       ENVIRONMENT "${ARG_ENVIRONMENT}")
  # Ranks of two suites that share a GPU would wait for each other's kernels.
  if(ARG_PCH AND TARGET torch_cuda)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
  endif()
  if(ARG_NEEDS)
    add_dependencies(${name} ${ARG_NEEDS})
  endif()
endfunction()
