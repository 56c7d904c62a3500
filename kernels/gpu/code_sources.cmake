# Writes files as strings of a C source, named by their base names.
#   cmake -DOUT=code_sources.c "-DFILES=/path/a;/path/b" -P code_sources.cmake
set(text "#include \"kernels/core/code.h\"\n\n#include <string.h>\n\n")
set(rows "")
set(all "")
set(i 0)
foreach(file IN LISTS FILES)
    file(READ ${file} hex HEX)
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
    string(APPEND text "static const char text_${i}[] = {${body}0};\n")
    string(APPEND all "${name} ${hex}\n")
    string(APPEND rows "    {\"${name}\", text_${i}},\n")
    math(EXPR i "${i} + 1")
endforeach()
string(SHA256 digest "${all}")
string(APPEND text "const char mf_code_sources_digest[] = \"${digest}\";\n\n")
string(APPEND text "static const struct {\n    const char *name, *text;\n} sources[] = {\n${rows}};\n
const char *mf_code_source(const char *name)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        if (strcmp(sources[i].name, name) == 0)
            return sources[i].text;
    }
    return NULL;
}

const char *mf_code_source_name(size_t i)
{
    return i < sizeof(sources) / sizeof(sources[0]) ? sources[i].name : NULL;
}
")
file(WRITE ${OUT} "${text}")
