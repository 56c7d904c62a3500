# GPUs: the sources of kernels/hip, built in as text; the program that compiles them when they are wanted; and the two
# modules that talk to a runtime, each where its headers are.
file(GLOB MF_HIP_KERNELS CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/hip
    ${CMAKE_CURRENT_SOURCE_DIR}/hip/*.hip ${CMAKE_CURRENT_SOURCE_DIR}/hip/*.h)
list(TRANSFORM MF_HIP_KERNELS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/hip/ OUTPUT_VARIABLE mf_hip_paths)
set(mf_hip_text ${CMAKE_CURRENT_BINARY_DIR}/code_sources.c)
add_custom_command(OUTPUT ${mf_hip_text}
    COMMAND ${CMAKE_COMMAND} -DOUT=${mf_hip_text} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/hip
            "-DFILES=${MF_HIP_KERNELS}" -P ${CMAKE_CURRENT_SOURCE_DIR}/code_sources.cmake
    DEPENDS ${mf_hip_paths} ${CMAKE_CURRENT_SOURCE_DIR}/code_sources.cmake
    COMMENT "Building in the GPU kernels' sources" VERBATIM)
set(MF_HIP_SOURCES
    sibling_file.c
    code.c
    family_hip.c
    family_hip_both.c
    family_hip_hopper.c
    family_hip_layer.c
    family_hip_move.c
    family_hip_move_run.c
    family_hip_mx.c
    family_hip_one.c
    family_hip_pair.c
    family_hip_permute.c
    family_hip_stage.c
    family_hip_tile.c
    family_hip_whole.c
    l2_halves.c
    hip_open.c
    data_on_device.c
    data_on_device_reference.c
    data_on_device_rows.c
    tmpdir.c
    ${mf_hip_text})
# Where an installed program finds them, from its own folder
include(GNUInstallDirs)
file(RELATIVE_PATH mf_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBEXECDIR}/moefarm)
file(RELATIVE_PATH mf_from_lib /${CMAKE_INSTALL_LIBDIR} /${CMAKE_INSTALL_LIBEXECDIR}/moefarm)
set_source_files_properties(sibling_file.c PROPERTIES
    COMPILE_DEFINITIONS "MF_FROM_BIN=\"${mf_from_bin}\";MF_FROM_LIB=\"${mf_from_lib}\"")

function(mf_add_hip_module vendor)
    add_library(moefarm-hip-${vendor} MODULE device_hip.c)
    set_target_properties(moefarm-hip-${vendor} PROPERTIES PREFIX "" OUTPUT_NAME moefarm-hip-${vendor})
    target_link_libraries(moefarm-hip-${vendor} PRIVATE mf_kernels mf_build ${CMAKE_DL_LIBS})
endfunction()

function(mf_add_hip)
    add_executable(moefarm-compile compile_main.c compile_clang.c)
    target_link_libraries(moefarm-compile PRIVATE mf_kernels mf_build ${CMAKE_DL_LIBS})
    find_path(MF_HIP_INCLUDE hip/hip_runtime_api.h)
    if(MF_HIP_INCLUDE)
        mf_add_hip_module(amd)
        target_include_directories(moefarm-hip-amd SYSTEM PRIVATE ${MF_HIP_INCLUDE})
    else()
        message(STATUS "hip:amd left out: no hip/hip_runtime_api.h (Debian: libamdhip64-dev)")
    endif()
    find_path(MF_CUDA_INCLUDE cuda.h HINTS /usr/local/cuda/include $ENV{CUDA_PATH}/include)
    if(MF_CUDA_INCLUDE)
        mf_add_hip_module(nvidia)
        target_compile_definitions(moefarm-hip-nvidia PRIVATE MF_HIP_NVIDIA)
        target_include_directories(moefarm-hip-nvidia SYSTEM PRIVATE ${MF_CUDA_INCLUDE})
    else()
        message(STATUS "hip:nvidia left out: no cuda.h (NVIDIA's CUDA toolkit)")
    endif()
endfunction()
