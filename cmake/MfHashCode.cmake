# Hashes the code of a C source without comments, white space and #include lines.

# Sets ret to a hash of FILE's code. gcc drops the comments: it lexes the file without expanding macros. With
# another compiler the comments are hashed too, so the hash and the kernel revision differ (fuzzer builds).
function(mf_hash_code file ret)
    if(CMAKE_C_COMPILER_ID STREQUAL GNU)
        execute_process(COMMAND ${CMAKE_C_COMPILER} -E -P -fpreprocessed -dD -w -x c ${file}
            OUTPUT_VARIABLE code RESULT_VARIABLE failed)
        if(failed)
            message(FATAL_ERROR "${file}: the compiler cannot lex it, so there is no kernel revision")
        endif()
    else()
        file(READ ${file} code)
    endif()
    string(REGEX REPLACE "# *include[^\n]*" "" code "${code}")
    string(REGEX REPLACE "[ \t\r\n]+" "" code "${code}")
    string(SHA256 hash "${code}")
    set(${ret} ${hash} PARENT_SCOPE)
endfunction()
