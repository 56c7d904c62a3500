# Tests of fmoe/
mf_add_test(check_fmoe USES fmoe kernels common SOURCES serving.c LABELS slow TIMEOUT 600
    LINK -Wl,--wrap=malloc,--wrap=calloc,--wrap=reallocarray,--wrap=pthread_mutex_lock)
mf_add_test(check_fmoe_report USES fmoe kernels common SOURCES serving.c LABELS slow TIMEOUT 600)
mf_add_test(check_farm_serving USES fmoe kernels common SOURCES serving.c LINK mf_farm_harness LABELS farm TIMEOUT 300)
add_executable(serve_layer ${CMAKE_SOURCE_DIR}/examples/serve_layer.c)
target_include_directories(serve_layer PRIVATE ${CMAKE_SOURCE_DIR}/fmoe)
target_link_libraries(serve_layer PRIVATE fmoe mf_build Threads::Threads)
add_dependencies(check_farm_serving moefarmd moefarm-worker moefarm serve_layer)
add_executable(libfmoe_call bench/libfmoe_call.c)
target_include_directories(libfmoe_call PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(libfmoe_call PRIVATE mf_cli mf_fmoe mf_measure mf_kernels mf_common mf_build m)
mf_add_test(check_fmoe_fallback USES kernels SOURCES family_contract.c row_limit.c)
