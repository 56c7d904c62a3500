# cmake -DOUT=model_list.c -DFILE=models.csv -P model_list.cmake: writes the list of models as a C string.
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
string(REGEX REPLACE
    "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
    "    \\1\n" body "${body}")
file(WRITE ${OUT}
    "#include \"common/table/model_list.h\"\n\nconst char mf_model_list_csv[] = {\n${body}0};\n")
