# Hashes the code of a C source: comments, white space and #include lines do not count.

# Sets ret to a hash of FILE's code. gcc lexes the file without expanding it, which drops comments; another
# compiler keeps them, so its builds (fuzzers) have revisions of their own.
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
