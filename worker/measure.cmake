set(MF_MEASURE_SOURCES
    ahead.c
    guard.c
    measure.c
    race.c
    region.c
    rotate.c
    session.c
    session_data.c
    session_reference.c
    session_race.c
    verify.c
    verify_index.c)
# The gates' loops over outputs are worth the vectoriser.
set_source_files_properties(verify.c PROPERTIES COMPILE_OPTIONS "-O3")
