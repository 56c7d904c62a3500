# Tests of server/
mf_add_test(check_path USES server)

# HTTP: the harness runs the HTTP thread and readers on a store of the test's own.
add_library(mf_http_harness STATIC http_harness.c http_client.c farm_fixture.c)
target_include_directories(mf_http_harness PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(mf_http_harness PUBLIC mf_server PRIVATE mf_build PUBLIC PkgConfig::CHECK)
add_executable(page_fixture page_fixture.c)
target_link_libraries(page_fixture PRIVATE mf_http_harness mf_server mf_build)
mf_add_test(check_cursor USES server)
mf_add_test(check_events USES server)
foreach(name check_api check_export check_http check_routes check_stream)
    mf_add_test(${name} USES http_harness server)
endforeach()
