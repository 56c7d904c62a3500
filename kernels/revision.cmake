# The kernel revision: a hash of every source of this folder, made anew at each configure, which a changed or new
# source causes.
file(GLOB_RECURSE mf_kernel_files CONFIGURE_DEPENDS
    RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.c ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.hip
    ${CMAKE_CURRENT_SOURCE_DIR}/*.cmake)
list(SORT mf_kernel_files)
set(mf_kernel_hashes "")
foreach(file IN LISTS mf_kernel_files)
    file(SHA256 ${CMAKE_CURRENT_SOURCE_DIR}/${file} hash)
    string(APPEND mf_kernel_hashes "${file} ${hash}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
endforeach()
string(SHA256 mf_kernel_revision "${mf_kernel_hashes}")
string(SUBSTRING ${mf_kernel_revision} 0 16 mf_kernel_revision)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/mf_kernel_revision.h
    CONTENT "#define MF_KERNEL_REVISION \"${mf_kernel_revision}\"\n")
set_source_files_properties(core/registry.c PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
