# The kernel revision. Results of two builds are compared only if both have the same revision. It is a hash of
# the code of every C, header and HIP file below kernels/. Comments, white space, #include lines, file names
# and folders do not affect the hash, but messages in string literals do. CMake computes the hash again when a
# file changes or a new file appears.
file(GLOB_RECURSE mf_kernel_files CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/*.c ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.hip)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mf_kernel_files})

include(MfHashCode)
set(mf_kernel_hashes "")
foreach(file IN LISTS mf_kernel_files)
    mf_hash_code(${file} hash)
    list(APPEND mf_kernel_hashes ${hash})
endforeach()
list(SORT mf_kernel_hashes)
string(SHA256 mf_kernel_revision "${mf_kernel_hashes}")
string(SUBSTRING ${mf_kernel_revision} 0 16 mf_kernel_revision)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/mf_kernel_revision.h
    CONTENT "#define MF_KERNEL_REVISION \"${mf_kernel_revision}\"\n")
set_source_files_properties(registry.c PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
