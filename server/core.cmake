# schema/ is built into the program, a migration an array (server/store/migration.h): its bytes as the initialiser.
file(GLOB mf_schema_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/schema/*.sql)   # sorted: their numbers have two digits
set(mf_schema_text "#include \"server/store/migration.h\"\n")
set(mf_schema_names "")
foreach(schema ${mf_schema_files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schema})
    get_filename_component(mf_schema_name ${schema} NAME_WE)
    file(READ ${schema} mf_schema_hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," mf_schema_bytes "${mf_schema_hex}")
    string(APPEND mf_schema_text "static const char schema_${mf_schema_name}[] = {${mf_schema_bytes}0};\n")
    string(APPEND mf_schema_names "schema_${mf_schema_name}, ")
endforeach()
list(LENGTH mf_schema_files mf_n_migrations)
string(APPEND mf_schema_text "const char *const mf_migrations[] = {${mf_schema_names}};\n"
    "const int mf_n_migrations = ${mf_n_migrations};\n")
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/schema.c CONTENT "@mf_schema_text@" @ONLY)

set(MF_CORE_SOURCES
    ${CMAKE_CURRENT_BINARY_DIR}/schema.c
    access.c batch.c channel.c config.c deliver.c event.c farm.c forecast.c task.c read_only.c hub.c ladder.c layout_choice.c mailroom.c map.c miss.c peer.c plan.c promote.c race.c rank.c regret.c result.c search.c slot.c
    store.c store_access.c store_backup.c store_batch.c store_cache.c store_miss.c store_promote.c store_rank.c store_refusal.c store_release.c store_unit.c store_wal.c store_worker.c unit.c authenticate.c)
