# Options, dependencies, and the functions that build every component of moefarm.
#
# mf_left_out(TEXT)
#     Adds a line to left_out.txt, which `make build` prints last: what is left out and how to get it.
# mf_add_layer(NAME USES layers… LINK …)
#     Adds a static library. Its include roots contain only its own folder and the folders of lower layers,
#     so that an include of a higher layer does not compile.
# mf_sources(LAYER files…)
#     Adds files of the calling folder to a layer.
# mf_add_program(NAME USES layers…)
#     Adds a program that is built from main.c and uses jemalloc.
# mf_add_test(NAME USES layers… [SOURCES …] [OPTIONAL] [DRAWS] [LABELS …])
#     Adds an executable from NAME.c and its ctest entry. SOURCES: more files, relative to tests/. OPTIONAL: a
#     second entry runs the cases that may be skipped (tests/support/mf_check.h). DRAWS: the test runs a
#     random part of its cases; a second entry NAME_all with label long runs all (tests/support/mf_draw.h).
# mf_add_fuzz(NAME USES layers… [SOURCES …] PARSES files…)
#     Adds a fuzz target from tests/fuzz/NAME.c. A test runs it on the inputs in tests/fuzz/NAME/. SOURCES:
#     files of layers that are not in USES. PARSES: files that the saved inputs must cover (scripts/fuzz.sh).

set(MF_SANITIZE "" CACHE STRING "sanitizers, separated by ';': address;undefined or thread")
option(MF_WERROR "treat warnings as errors" OFF)
option(MF_HARDEN "build as packages are built: stack protector, FORTIFY, full RELRO, BIND_NOW, PIE" OFF)
option(MF_FUZZ "build the libFuzzer targets (needs clang)" OFF)
option(MF_SIM "build the simulated device; the tests need it" ON)

find_package(PkgConfig REQUIRED)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(MHD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)
pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
# oneDNN's headers; the library is loaded at run time.
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
find_package(Threads REQUIRED)

add_library(mf_build INTERFACE)
target_compile_options(mf_build INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wwrite-strings
    -Wpointer-arith -Wundef -Wvla -Wformat=2 -Wdouble-promotion -Wimplicit-fallthrough)
if(MF_WERROR)
    target_compile_options(mf_build INTERFACE -Werror)
endif()
target_compile_definitions(mf_build INTERFACE _GNU_SOURCE MF_VERSION="${PROJECT_VERSION}"
    MF_SIM=$<BOOL:${MF_SIM}>)
if(MF_SANITIZE)
    string(REPLACE ";" "," mf_sanitize_list "${MF_SANITIZE}")
    target_compile_options(mf_build INTERFACE
        -fsanitize=${mf_sanitize_list} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(mf_build INTERFACE -fsanitize=${mf_sanitize_list})
endif()
# Limits what a memory error in a program can be used for. The sanitizers find such errors instead, and
# _FORTIFY_SOURCE would hide some from them. With _FORTIFY_SOURCE, gcc warns even about (void)ftruncate(…).
if(MF_HARDEN AND NOT MF_SANITIZE AND NOT MF_FUZZ)
    include(CheckPIESupported)
    check_pie_supported(LANGUAGES C)
    target_compile_options(mf_build INTERFACE -fstack-protector-strong -fstack-clash-protection
        -Wno-unused-result -U_FORTIFY_SOURCE $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
    target_link_options(mf_build INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)
endif()
if(MF_FUZZ)
    target_compile_options(mf_build INTERFACE -fsanitize=fuzzer-no-link -fprofile-instr-generate
        -fcoverage-mapping)
    target_link_options(mf_build INTERFACE -fprofile-instr-generate)
endif()

set(MF_LEFT_OUT ${CMAKE_BINARY_DIR}/left_out.txt)
file(WRITE ${MF_LEFT_OUT} "")
function(mf_left_out text)
    file(APPEND ${MF_LEFT_OUT} "left out: ${text}\n")
endfunction()

# Sets MF_ROOT to the include root of a layer: a folder with one symbolic link to the layer's sources.
function(mf_include_root layer)
    set(root ${CMAKE_BINARY_DIR}/roots/${layer})
    file(MAKE_DIRECTORY ${root})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${layer} ${root}/${layer} SYMBOLIC)
    set(MF_ROOT ${root} PARENT_SCOPE)
endfunction()

function(mf_add_layer layer)
    cmake_parse_arguments(ARG "" "" "SOURCES;USES;LINK" ${ARGN})
    mf_include_root(${layer})
    add_library(mf_${layer} STATIC ${ARG_SOURCES})
    target_include_directories(mf_${layer} PUBLIC ${MF_ROOT})
    target_link_libraries(mf_${layer} PUBLIC ${ARG_LINK} PRIVATE mf_build)
    foreach(below IN LISTS ARG_USES)
        target_link_libraries(mf_${layer} PUBLIC mf_${below})
    endforeach()
endfunction()

function(mf_sources layer)
    target_sources(mf_${layer} PRIVATE ${ARGN})
endfunction()

# Compiles a text file of the calling folder into a layer, as the C string `name`, which `header` declares.
function(mf_embed_text layer file name header)
    set(script ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake)
    add_custom_command(OUTPUT ${name}.c
        COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_CURRENT_BINARY_DIR}/${name}.c
                -DFILE=${CMAKE_CURRENT_SOURCE_DIR}/${file} -DHEADER=${header} -DNAME=${name} -P ${script}
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${script}
        COMMENT "Embedding ${file}" VERBATIM)
    mf_sources(${layer} ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
endfunction()

# Compiles the given files of the calling folder with additional flags.
function(mf_compile_flags layer flags)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY mf_${layer} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()

# Adds files of the calling folder to the embedded GPU kernel sources.
function(mf_gpu_files)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
    set_property(GLOBAL APPEND PROPERTY MF_GPU_FILES ${paths})
endfunction()

# Links the program with jemalloc. The JSON of a message takes hundreds of small allocations, which one thread
# makes and another thread frees. With jemalloc a farm takes 20 to 40 % more results per second than with
# glibc's malloc (make bench-catalogue). The program uses no symbol of jemalloc, so the linker needs
# --no-as-needed to keep it. Sanitizers have a malloc of their own.
function(mf_add_program name)
    cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
    add_executable(${name} main.c)
    foreach(layer IN LISTS ARG_USES)
        target_link_libraries(${name} PRIVATE mf_${layer})
    endforeach()
    target_link_libraries(${name} PRIVATE mf_build)
    if(NOT MF_SANITIZE)
        target_link_libraries(${name} PRIVATE -Wl,--push-state,--no-as-needed PkgConfig::JEMALLOC
            -Wl,--pop-state)
    endif()
endfunction()

# Tests run in parallel, so each test creates its own folders and uses port 0.
function(mf_add_test name)
    cmake_parse_arguments(ARG "SERIAL;OPTIONAL;DRAWS" "TIMEOUT;PARTS" "USES;LABELS;SOURCES;LINK" ${ARGN})
    list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/tests/)
    add_executable(${name} ${name}.c ${ARG_SOURCES})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(${name} PRIVATE MF_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
        MF_SOURCE_DIR="${CMAKE_SOURCE_DIR}" MF_BINARY_DIR="${CMAKE_BINARY_DIR}")
    foreach(layer IN LISTS ARG_USES)
        target_link_libraries(${name} PRIVATE mf_${layer})
    endforeach()
    target_link_libraries(${name} PRIVATE mf_build PkgConfig::CHECK Threads::Threads ${ARG_LINK})
    # PARTS: number of ctest entries that share the test's cases; entry i runs with the argument i/PARTS.
    set(tests ${name})
    if(ARG_PARTS)
        set(tests "")
        foreach(part RANGE 1 ${ARG_PARTS})
            add_test(NAME ${name}_${part} COMMAND ${name} ${part}/${ARG_PARTS})
            list(APPEND tests ${name}_${part})
        endforeach()
    else()
        add_test(NAME ${name} COMMAND ${name})
    endif()
    # Cases that may be skipped have an entry of their own (tests/support/mf_check.h).
    set(tag "")
    if(ARG_OPTIONAL)
        add_test(NAME ${name}_optional COMMAND ${name})
        list(APPEND tests ${name}_optional)
        set(tag ";CK_EXCLUDE_TAGS=optional")
    endif()
    if(NOT ARG_LABELS)
        set(ARG_LABELS unit)
    endif()
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
    endif()
    # Sanitizers slow programs down, so ctest's time limits are multiplied. libcheck multiplies its own.
    set(slower 1)
    if(MF_SANITIZE)
        set(slower 10)
    endif()
    math(EXPR limit "${ARG_TIMEOUT} * ${slower}")
    # libcheck's default of four seconds per case is too short for a busy machine.
    # Exit status 77: the test prints which requirement is missing and counts as skipped.
    set_tests_properties(${tests} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${limit} SKIP_RETURN_CODE 77
        ENVIRONMENT "CK_TIMEOUT_MULTIPLIER=${slower};CK_DEFAULT_TIMEOUT=60${tag}")
    if(ARG_OPTIONAL)
        set_tests_properties(${name}_optional PROPERTIES
            ENVIRONMENT "CK_TIMEOUT_MULTIPLIER=${slower};CK_DEFAULT_TIMEOUT=60;CK_INCLUDE_TAGS=optional")
    endif()
    if(ARG_SERIAL)
        set_tests_properties(${tests} PROPERTIES RUN_SERIAL TRUE)
    endif()
    # DRAWS: the test runs a random part of its cases (tests/support/mf_draw.h); this entry runs all cases.
    if(ARG_DRAWS)
        add_test(NAME ${name}_all COMMAND ${name})
        set_tests_properties(${name}_all PROPERTIES LABELS long TIMEOUT 3600 SKIP_RETURN_CODE 77
            ENVIRONMENT "CK_TIMEOUT_MULTIPLIER=${slower};CK_DEFAULT_TIMEOUT=60;MOEFARM_TEST_ALL=1")
    endif()
endfunction()

function(mf_add_fuzz name)
    cmake_parse_arguments(ARG "" "" "USES;SOURCES;LINK;PARSES" ${ARGN})
    set(inputs ${CMAKE_CURRENT_SOURCE_DIR}/${name})
    list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
    list(JOIN ARG_PARSES "\n" parses)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/tests/${name}.parses CONTENT "@parses@\n" @ONLY)
    if(MF_FUZZ)
        add_executable(${name} ${name}.c ${ARG_SOURCES})
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
        add_test(NAME ${name} COMMAND ${name} -runs=0 ${inputs})
    else()
        add_executable(${name} ${name}.c replay.c ${ARG_SOURCES})
        add_test(NAME ${name} COMMAND ${name} ${inputs})
    endif()
    foreach(layer IN LISTS ARG_USES)
        target_link_libraries(${name} PRIVATE mf_${layer})
    endforeach()
    foreach(source IN LISTS ARG_SOURCES)
        string(REGEX REPLACE "^${CMAKE_SOURCE_DIR}/([a-z]+)/.*" "\\1" layer ${source})
        mf_include_root(${layer})
        target_include_directories(${name} PRIVATE ${MF_ROOT})
    endforeach()
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE mf_build ${ARG_LINK})
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 120)
endfunction()
