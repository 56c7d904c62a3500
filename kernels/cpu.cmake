set(MF_CPU_SOURCES
    device.c)
