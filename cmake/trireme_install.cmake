# `cmake --install build` installs the programs, the public headers and one library per layer;
# find_package(Trireme) then provides Trireme::trireme.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY TRIREME_LAYERS)
set(targets trireme_all)
foreach(layer ${layers})
  list(APPEND targets trireme_${layer})
endforeach()
install(TARGETS ${targets} EXPORT TriremeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS trireme trireme-rank RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(CODE "set(TRIREME_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")
set(TRIREME_INCLUDE_DIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")")
install(SCRIPT cmake/trireme_install_headers.cmake)
install(EXPORT TriremeTargets NAMESPACE Trireme::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in ${PROJECT_BINARY_DIR}/TriremeConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
