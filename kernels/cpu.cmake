# The CPU device, its threads and its families. Kernels are compiled once for each instruction set and chosen at
# run time, so that one binary runs everywhere.
set(MF_CPU_SOURCES
    cpu_peaks.c
    device.c
    device_cpu.c
    family_asm.c
    family_cpu.c
    family_lib.c
    family_move.c
    family_move_run.c
    family_one.c
    family_plugin.c
    family_tile.c
    isa.c
    module_cpu.c
    pool.c
    asm_args.c
    asm_manifest.c
    registry.c
    cpu/align.c
    cpu/blocks.c
    cpu/dequant.c
    cpu/moe_sort.c
    cpu/ops.c
    cpu/ops_c.c
    cpu/peaks.c
    cpu/peaks_c.c
    cpu/permute.c
    cpu/permute_ascend.c
    cpu/permute_megatron.c
    cpu/permute_vllm.c
    cpu/quant_move.c
    cpu/stage.c)

# Kernels trap nothing and set no errno; sums keep their order, so that every run agrees bitwise.
set(MF_KERNEL_FLAGS -O3 -fno-math-errno -fno-trapping-math)
# The same bits for every instruction set.
set_source_files_properties(cpu/dequant.c cpu/permute.c PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")
set_source_files_properties(cpu/ops_c.c cpu/peaks_c.c cpu/stage.c PROPERTIES COMPILE_OPTIONS "${MF_KERNEL_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND MF_CPU_SOURCES cpu/ops_avx2.c cpu/ops_avx512.c cpu/peaks_avx2.c cpu/peaks_avx512.c)
    set_source_files_properties(cpu/ops_avx2.c cpu/peaks_avx2.c PROPERTIES
        COMPILE_OPTIONS "${MF_KERNEL_FLAGS};-mavx2;-mfma")
    set_source_files_properties(cpu/ops_avx512.c cpu/peaks_avx512.c PROPERTIES
        COMPILE_OPTIONS "${MF_KERNEL_FLAGS};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16;-mavx512vnni;-mfma;-mprefer-vector-width=512")
endif()

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
set_source_files_properties(registry.c PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
