set(MF_SIM_SOURCES
    sim.c
    sim_family.c
    sim_spec.c)
