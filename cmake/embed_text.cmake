# cmake -DOUT=list.c -DFILE=list.txt -DHEADER=folder/list.h -DNAME=symbol -P embed_text.cmake: writes a text
# file as the C string NAME, which HEADER declares.
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
string(REGEX REPLACE
    "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
    "    \\1\n" body "${body}")
file(WRITE ${OUT} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = {\n${body}0};\n")
