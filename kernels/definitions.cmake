set(MF_DEFINITION_SOURCES
    philox.c)
