# Tests of server/
mf_add_test(check_batch_end USES server LINK -Wl,--wrap=mf_store_goals_open)
mf_add_test(check_finalists USES server)
mf_add_test(check_forecast USES server)
mf_add_test(check_event USES server)
mf_add_test(check_hub USES server)
mf_add_test(check_layout_choice USES server)
mf_add_test(check_map USES server)

mf_add_test(check_plan USES server)
mf_add_test(check_problem USES server)
mf_add_test(check_reader USES server)
mf_add_test(check_result USES server)
mf_add_test(check_store USES server)
mf_add_test(check_store_cache USES server)

# HTTP: the harness runs the HTTP thread and readers on a store of the test's own.
add_library(mf_http_harness STATIC http_harness.c http_client.c farm_fixture.c)
target_include_directories(mf_http_harness PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(mf_http_harness PUBLIC mf_server PRIVATE mf_build PUBLIC PkgConfig::CHECK)
add_executable(page_fixture page_fixture.c)
target_link_libraries(page_fixture PRIVATE mf_http_harness mf_server mf_build)
mf_add_test(check_cursor USES server)
mf_add_test(check_gate USES server)
mf_add_test(check_events USES server)
foreach(name check_api check_export check_http check_http_client check_release check_routes check_stream)
    mf_add_test(${name} USES http_harness server)
endforeach()

# The page's charting library is byte for byte what was taken over.
add_test(NAME vendored COMMAND ${CMAKE_SOURCE_DIR}/scripts/vendor.sh --check)
set_tests_properties(vendored PROPERTIES LABELS style TIMEOUT 30)

# The page in a browser: needs Node and Debian's chromium with its driver; skips with a sentence without them.
find_program(MF_NODE NAMES node nodejs)
if(MF_NODE)
    add_test(NAME browser_page COMMAND ${MF_NODE} ${CMAKE_SOURCE_DIR}/tests/browser/page.mjs ${CMAKE_BINARY_DIR})
else()
    add_test(NAME browser_page COMMAND sh -c "echo 'skipped: node is missing (Debian package nodejs)'; exit 77")
endif()
set_tests_properties(browser_page PROPERTIES LABELS browser TIMEOUT 180 SKIP_RETURN_CODE 77)
