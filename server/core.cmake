# The schema is built into the program, a migration an array: its bytes as the initialiser.
set(mf_schema_text "")
set(mf_schema_number 0)
foreach(schema schema.sql schema_2.sql schema_3.sql schema_4.sql schema_5.sql schema_6.sql schema_7.sql schema_8.sql schema_9.sql schema_10.sql schema_11.sql schema_12.sql schema_13.sql schema_14.sql)
    math(EXPR mf_schema_number "${mf_schema_number} + 1")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${schema})
    file(READ ${CMAKE_SOURCE_DIR}/${schema} mf_schema_hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," mf_schema_bytes "${mf_schema_hex}")
    set(mf_schema_name "mf_schema_${mf_schema_number}[]")
    string(APPEND mf_schema_text
        "extern const char ${mf_schema_name};\nconst char ${mf_schema_name} = {${mf_schema_bytes}0};\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/schema.c CONTENT "@mf_schema_text@" @ONLY)

set(MF_CORE_SOURCES
    ${CMAKE_CURRENT_BINARY_DIR}/schema.c
    access.c batch.c channel.c config.c deliver.c event.c farm.c goal.c halt.c hub.c map.c miss.c peer.c plan.c promote.c race.c rank.c regret.c result.c search.c slot.c
    store.c store_access.c store_backup.c store_batch.c store_miss.c store_promote.c store_rank.c store_release.c store_unit.c store_wal.c store_worker.c unit.c zap.c)
