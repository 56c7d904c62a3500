#!/bin/bash
# The house rules that a machine can keep. Prints what breaks one, file and line; exit 1 when something did.
# Exit 77 (skipped) when everything else is fine but clang-format 14 is missing, so the format was not looked at.
#
#   scripts/check_style.sh          check
#   scripts/check_style.sh --fix    format in place
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(find common cli fmoe kernels measure server tests worker -name '*.[ch]' -type f | sort)
mapfile -t texts < <(find . \( -name .git -o -name 'build*' -o -path ./tests/data -o -path ./server/page/vendor \) -prune \
    -o -type f \( -name '*.[ch]' -o -name '*.sh' -o -name '*.py' -o -name '*.js' -o -name '*.sql' -o -name '*.md' \
    -o -name '*.cmake' -o -name CMakeLists.txt \) -print | sort)
failed=0

# refuse SENTENCE PATTERN FILE…: no line of the files may match.
refuse() {
    local sentence=$1 pattern=$2 hits
    shift 2
    [ $# -gt 0 ] || return 0
    if hits=$(grep -nE "$pattern" "$@" /dev/null); then
        echo "style: $sentence"
        sed 's/^/  /' <<<"$hits"
        failed=1
    fi
}

find_clang_format() {
    local program
    for program in clang-format-14 clang-format; do
        if command -v $program >/dev/null && $program --version | grep -q 'version 14\.'; then
            echo $program
            return
        fi
    done
}
clang_format=$(find_clang_format)

if [ "${1-}" = --fix ]; then
    [ -n "$clang_format" ] || { echo "style: clang-format 14 is missing (apt-get install clang-format)" >&2; exit 1; }
    $clang_format -i "${sources[@]}"
    exit 0
fi

refuse "these calls write without a bound, hide errors or share a buffer: use common/base/text.h and common/base/buf.h" \
    '(^|[^_[:alnum:]."])(strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|atof|gmtime|localtime|system|gets) *\(' \
    $(printf '%s\n' "${sources[@]}" | grep -v '^tests/')
refuse "finish it or leave it out" '(TOD[O]|FIXM[E]|XX[X])( |:|\(|$)' "${texts[@]}"
refuse "only server/store/ may include sqlite3.h, through store_private.h" '^ *# *include <sqlite3\.h>' \
    $(printf '%s\n' "${sources[@]}" | grep -v -e '^server/store/store_private\.h$' -e '^tests/')
refuse "tabs in C source" $'\t' "${sources[@]}"
refuse "trailing white space" '[ '$'\t'']+$' $(printf '%s\n' "${texts[@]}" | grep -v '\.md$')

# What is released on the way out must not find garbage: no return between its declaration and the first call that gets it.
hits=$(awk '
    /_cleanup_\([a-z_]+\) struct [a-z_]+ [^=*]*;/ {
        names = $0
        gsub(/.*struct [a-z_]+ |;.*/, "", names)
        n = split(names, each, /, */)
        for (i = 1; i <= n; i++)
            bare[each[i]] = 1
        next
    }
    {
        for (name in bare) {
            if ($0 ~ "&" name "[^A-Za-z0-9_]")
                delete bare[name]
            else if (/(^|[^A-Za-z0-9_])return[ ;]/)
                print FILENAME ":" FNR ":" $0
        }
    }
    /^}/ { split("", bare) }' "${sources[@]}")
if [ -n "$hits" ]; then
    echo "style: returns before what _cleanup_ releases has a beginning: initialise it above"
    sed 's/^/  /' <<<"$hits"
    failed=1
fi

while read -r lines file; do
    if [ "$file" != total ] && [ "$lines" -gt 900 ]; then
        echo "style: $file has $lines lines; a file has one duty and at most 900 lines"
        failed=1
    fi
done < <(wc -l "${sources[@]}")

for header in $(printf '%s\n' "${sources[@]}" | grep '\.h$' | grep -v '\.inc\.h$'); do
    [ "$header" != fmoe/fmoe.h ] || continue # of any compiler: a guard
    grep -q '^#pragma once' "$header" || { echo "style: $header lacks #pragma once"; failed=1; }
done

if [ -n "$clang_format" ]; then
    if ! bad=$($clang_format --dry-run --Werror "${sources[@]}" 2>&1); then
        echo "style: not as clang-format would have it (make format):"
        grep -oE '^[^: ]+:[0-9]+:[0-9]+: error' <<<"$bad" | awk -F: '!n[$1]++ {print "  " $1 ":" $2}'
        failed=1
    fi
elif [ $failed = 0 ]; then
    echo "style: skipped the format: clang-format 14 is missing (apt-get install clang-format)"
    exit 77
fi
exit $failed
