set(MF_MEASURE_SOURCES
    race.c)
