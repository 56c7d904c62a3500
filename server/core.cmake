# The schema is built into the program: its bytes as the initialiser of one array.
set(MF_SCHEMA ${CMAKE_SOURCE_DIR}/schema.sql)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MF_SCHEMA})
file(READ ${MF_SCHEMA} mf_schema_hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," mf_schema_bytes "${mf_schema_hex}")
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/schema.c
    CONTENT "extern const char mf_schema_1[];\nconst char mf_schema_1[] = {@mf_schema_bytes@0};\n" @ONLY)

set(MF_CORE_SOURCES
    ${CMAKE_CURRENT_BINARY_DIR}/schema.c
    batch.c config.c deliver.c event.c farm.c goal.c hub.c map.c path.c peer.c plan.c race.c rank.c result.c search.c slot.c
    store.c store_batch.c store_rank.c store_unit.c store_worker.c unit.c)
