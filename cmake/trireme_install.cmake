# `cmake --install build` puts the programs, the headers and one library per layer in place;
# find_package(Trireme) then gives Trireme::trireme.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY TRIREME_LAYERS)
set(targets trireme_all)
foreach(layer ${layers})
  list(APPEND targets trireme_${layer})
endforeach()
install(TARGETS ${targets} EXPORT TriremeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS trireme trireme-rank RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY trireme DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT TriremeTargets NAMESPACE Trireme::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in ${PROJECT_BINARY_DIR}/TriremeConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
