# Tests that start real processes
add_library(mf_farm_harness STATIC farm_harness.c)
target_include_directories(mf_farm_harness PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_compile_definitions(mf_farm_harness PRIVATE MF_BINARY_DIR="${CMAKE_BINARY_DIR}")
target_link_libraries(mf_farm_harness PUBLIC mf_http_harness mf_common PRIVATE mf_build)
mf_add_test(check_farm_kill USES worker LINK mf_farm_harness LABELS farm TIMEOUT 300)
add_dependencies(check_farm_kill moefarmd moefarm-worker)
