# The production operator's table; pipelines are in definitions.cmake.
set(MF_LIBFMOE_SOURCES
    fmoe_fallback.c
    fmoe_place.c
    fmoe_table.c)
