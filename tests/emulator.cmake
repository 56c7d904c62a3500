# The emulator of GPU kernels, which compiles them with g++ as its tests run.
find_program(MF_GXX NAMES g++)
mark_as_advanced(MF_GXX)
set(MF_EMULATOR_OBJECTS emulator/fiber.c emulator/grid.c emulator/known.c emulator/lane.c emulator/object.c
    emulator/shadow.c)
function(mf_uses_emulator name)
    target_compile_definitions(${name} PRIVATE MF_EMULATOR_CXX="$<JOIN:${CMAKE_C_COMPILER_LAUNCHER};${MF_GXX}, >"
        MF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endfunction()
function(mf_add_emulator_test name)
    if(NOT MF_GXX)
        message(STATUS "${name} left out: no g++, which compiles GPU kernels for the emulator")
        return()
    endif()
    cmake_parse_arguments(ARG "" "" "SOURCES;LABELS;USES" ${ARGN})
    mf_add_test(${name} USES ${ARG_USES} kernels common LABELS ${ARG_LABELS} TIMEOUT 300 LINK ${CMAKE_DL_LIBS} SOURCES ${ARG_SOURCES}
        emulator/device_emulated.c ${MF_EMULATOR_OBJECTS})
    mf_uses_emulator(${name})
endfunction()
if(NOT MF_SANITIZE MATCHES thread)
    mf_add_emulator_test(check_emulator_nvidia SOURCES family_contract.c row_limit.c LABELS slow)
    mf_add_emulator_test(check_emulator_amd SOURCES family_contract.c row_limit.c LABELS slow)
    mf_add_emulator_test(check_emulator_moves SOURCES family_contract.c row_limit.c)
    mf_add_emulator_test(check_emulator_faults)
    mf_add_emulator_test(check_emulator_maps)
    mf_add_emulator_test(check_maker LABELS slow)
    mf_add_emulator_test(check_session_device USES worker LABELS slow)
endif()

# Runtimes of AMD over the emulator, as three releases have them (emulator/hip/runtime.h): each is found in its own folder.
function(mf_add_hip_library name release output)
    cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
    add_library(${name} SHARED ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} VERSION ${release}.0.emulated SOVERSION ${release}
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/hip${release})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_include_directories(${name} SYSTEM PRIVATE ${MF_HIP_INCLUDE})
    target_compile_definitions(${name} PRIVATE FAKE_HIP_RELEASE=${release})
    mf_uses_emulator(${name})
    target_link_libraries(${name} PRIVATE mf_common mf_build ${CMAKE_DL_LIBS})
endfunction()
if(TARGET moefarm-hip-amd AND MF_GXX AND NOT MF_SANITIZE MATCHES thread)
    set(mf_hip_runtime emulator/hip/describe.c emulator/hip/faults.c emulator/hip/graph.c emulator/hip/memory.c
        emulator/hip/module.c emulator/hip/queue.c ${MF_EMULATOR_OBJECTS})
    foreach(other hip5/libhiprtc.so.7 hip5/libhiprtc.so.6 hip5/libhiprtc.so.5 hip5/libamdhip64.so.7 hip5/libamdhip64.so.6
            hip6/libhiprtc.so.7 hip6/libhiprtc.so.6 hip6/libamdhip64.so.7)
        file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${other} "In place of the host's own, which the tests do not want.\n")
    endforeach()
    mf_add_hip_library(fake_hip5 5 amdhip64 SOURCES ${mf_hip_runtime} emulator/hip/rtc.c)
    mf_add_hip_library(fake_hip6 6 amdhip64 SOURCES ${mf_hip_runtime} emulator/hip/rtc.c)
    mf_add_hip_library(fake_hip7 7 amdhip64 SOURCES ${mf_hip_runtime})
    mf_add_hip_library(fake_hiprtc7 7 hiprtc SOURCES emulator/hip/rtc.c emulator/object.c)
    mf_add_test(check_amd_device USES kernels common LINK ${CMAKE_DL_LIBS} LABELS farm)
    add_dependencies(check_amd_device fake_hip6 moefarm-hip-amd moefarm-compile)
    mf_add_test(check_amd_worker USES worker kernels common LINK mf_farm_harness ${CMAKE_DL_LIBS} LABELS farm slow
        TIMEOUT 300)
    add_dependencies(check_amd_worker fake_hip5 fake_hip6 fake_hip7 fake_hiprtc7 moefarm-hip-amd moefarm-compile
        moefarm-worker moefarmd)
endif()
