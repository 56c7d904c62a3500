# Generates a C source with the contents of files as byte arrays:
#   cmake -DOUT=embed.c -DFOLDER=page "-DFILES=a;b" -P embed.cmake
set(text "#include \"server/page/embed.h\"\n\n#include <string.h>\n\n")
set(rows "")
set(i 0)
foreach(file IN LISTS FILES)
    file(READ ${FOLDER}/${file} hex HEX)
    file(SHA256 ${FOLDER}/${file} hash)
    string(SUBSTRING ${hash} 0 32 hash)
    string(LENGTH "${hex}" digits)
    math(EXPR bytes "${digits} / 2")
    string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
    string(REPEAT "0x..," 16 line)
    string(REGEX REPLACE "(${line})" "    \\1\n" body "${body}")
    string(APPEND text "static const unsigned char file_${i}[] = {\n${body}0};\n\n")
    string(APPEND rows "    {\"${file}\", \"\\\"${hash}\\\"\", file_${i}, ${bytes}},\n")
    math(EXPR i "${i} + 1")
endforeach()
string(APPEND text "static const struct {\n    const char *name, *etag;\n    const unsigned char *data;\n"
"    size_t len;\n} files[] = {\n${rows}};\n
const char *mf_embedded(const char *name, size_t *ret_len)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (strcmp(files[i].name, name) == 0) {
            *ret_len = files[i].len;
            return (const char *)files[i].data;
        }
    }
    return NULL;
}

const char *mf_embedded_etag(const char *name)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (strcmp(files[i].name, name) == 0)
            return files[i].etag;
    return \"\";
}
")
file(WRITE ${OUT} "${text}")
