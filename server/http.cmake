set(MF_HTTP_SOURCES
    api.c
    api_access.c
    api_channel.c
    api_export.c
    api_miss.c
    api_release.c
    api_table.c
    api_write.c
    baseline.c
    bus.c
    cursor.c
    events.c
    exchange.c
    export.c
    gate.c
    http.c
    metrics.c
    openapi.c
    page.c
    problem.c
    reader.c
    release.c
    request.c
    routes.c
    store_export.c
    store_json.c
    store_read.c
    store_read_metrics.c
    store_read_release.c
    store_read_shapes.c
    store_read_steps.c
    store_read_timeline.c
    stream.c
    submission.c)

# The status page, built in: each file becomes an array of bytes, made anew when the file changes.
set(MF_PAGE_FILES index.html app.js views.js goal.js releases.js plots.js charts.js app.css icon.svg schemas.json
    vendor/uPlot.iife.min.js vendor/uPlot.min.css vendor/LICENSE)
set(mf_embed ${CMAKE_CURRENT_BINARY_DIR}/embed.c)
set(mf_page_paths)
foreach(file IN LISTS MF_PAGE_FILES)
    list(APPEND mf_page_paths ${CMAKE_CURRENT_SOURCE_DIR}/page/${file})
endforeach()
add_custom_command(OUTPUT ${mf_embed}
    COMMAND ${CMAKE_COMMAND} -DOUT=${mf_embed} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/page
            "-DFILES=${MF_PAGE_FILES}" -P ${CMAKE_CURRENT_SOURCE_DIR}/embed.cmake
    DEPENDS ${mf_page_paths} ${CMAKE_CURRENT_SOURCE_DIR}/embed.cmake
    COMMENT "Embedding the status page" VERBATIM)
list(APPEND MF_HTTP_SOURCES ${mf_embed})
