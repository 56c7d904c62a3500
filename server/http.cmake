set(MF_HTTP_SOURCES
    request.c)
