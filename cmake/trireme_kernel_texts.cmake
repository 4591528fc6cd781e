# trireme_kernel_texts(TARGET): makes the files of cuda/kernels part of a library, as strings. They are
# compiled for the GPU at hand when a program runs.
function(trireme_kernel_texts target)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/*.cu)
  set(entries "")
  foreach(path ${files})
    get_filename_component(name ${path} NAME_WE)
    file(READ ${path} text)
    string(APPEND entries "    {\"${name}\", R\"kernel(${text})kernel\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  endforeach()
  set(TRIREME_KERNEL_TEXTS "${entries}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/kernel_texts.cpp.in
                 ${CMAKE_CURRENT_BINARY_DIR}/kernel_texts.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/kernel_texts.cpp)
endfunction()
