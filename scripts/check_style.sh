#!/bin/bash
# Checks the rules of CONTRIBUTING.md that a program can check. Prints each violation with file and line. Exit
# status: 1 if there is a violation; 77 (skipped) if no violation is found but clang-format 14 is missing.
#
#   scripts/check_style.sh          check
#   scripts/check_style.sh --fix    format the C sources in place
set -euo pipefail
cd "$(dirname "$0")/.."
COLUMNS_MAX=110
SUBJECT_MAX=72
LINES_MAX=900
# The rule for commit subjects applies only to commits after this one.
SUBJECTS_SINCE=966a053ba800c53c270178d4a62b71e1c1682ec4

mapfile -t sources < <(find common cli fmoe kernels measure server tests worker -name '*.[ch]' -type f | sort)
mapfile -t texts < <(find . \
    \( -name .git -o -name 'build*' -o -path ./tests/data -o -path ./server/page/vendor \
    -o -path './tests/fuzz/fuzz_*' -type d \) -prune \
    -o -type f \( -name '*.[ch]' -o -name '*.hip' -o -name '*.cc' -o -name '*.sh' -o -name '*.py' \
    -o -name '*.js' -o -name '*.css' -o -name '*.mjs' -o -name '*.sql' -o -name '*.md' -o -name '*.cmake' \
    -o -name CMakeLists.txt -o -name Makefile -o -path './.ci/*' -o -path './deploy/*' ! -name '*.json' \) \
    -print | sort)
failed=0

# report SENTENCE LINES: prints a violation and its places.
report() {
    echo "style: $1"
    sed 's/^/  /' <<<"$2"
    failed=1
}

# refuse SENTENCE PATTERN FILE…: no line of the files may match the pattern.
refuse() {
    local sentence=$1 pattern=$2 hits
    shift 2
    [ $# -gt 0 ] || return 0
    if hits=$(grep -nE -e "$pattern" "$@" /dev/null); then
        report "$sentence" "$hits"
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
    if [ -z "$clang_format" ]; then
        echo "style: clang-format 14 is missing (package clang-format)" >&2
        exit 1
    fi
    $clang_format -i "${sources[@]}"
    exit 0
fi

check_calls() {
    refuse "these calls have no bound, hide errors or share a buffer: use common/base/text.h and buf.h" \
        '(^|[^_[:alnum:]."])(strcpy|strcat|v?sprintf|strtok|ato[ilf]|gmtime|localtime|system|gets) *\(' \
        $(printf '%s\n' "${sources[@]}" | grep -v '^tests/')
    refuse "finish it or leave it out" '(TOD[O]|FIXM[E]|XX[X])( |:|\(|$)' "${texts[@]}"
    refuse "only server/store/ may include sqlite3.h" '^ *# *include <sqlite3\.h>' \
        $(printf '%s\n' "${sources[@]}" | grep -v -e '^server/store/' -e '^tests/')
}

check_layout() {
    local hits header lines file
    refuse "tabs in C source" $'\t' "${sources[@]}"
    refuse "trailing white space" '[ '$'\t'']+$' $(printf '%s\n' "${texts[@]}" | grep -v '\.md$')
    # Count characters, not bytes: remove the continuation bytes of UTF-8
    hits=$(LC_ALL=C awk -v most=$COLUMNS_MAX '{ line = $0; gsub(/[\200-\277]/, "", line) }
        length(line) > most { print FILENAME ":" FNR ": " length(line) " columns" }' "${spoken[@]}")
    [ -z "$hits" ] || report "a line has at most $COLUMNS_MAX columns" "$hits"
    while read -r lines file; do
        if [ "$file" != total ] && [ "$lines" -gt $LINES_MAX ]; then
            report "a file has one duty and at most $LINES_MAX lines" "$file: $lines lines"
        fi
    done < <(wc -l "${sources[@]}")
    for header in $(printf '%s\n' "${sources[@]}" | grep '\.h$' | grep -v '\.inc\.h$'); do
        case "$header" in fmoe/fmoe.h | fmoe/fmoe_ops.h) continue ;; esac # have guards for any compiler
        grep -q '^#pragma once' "$header" || report "a header begins with #pragma once" "$header"
    done
}

# A variable with _cleanup_ must be initialised before the first return.
check_cleanup() {
    local hits
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
    [ -z "$hits" ] || report "initialise a variable with _cleanup_ before the first return" "$hits"
}

check_language() {
    local pattern instead
    while IFS=$'\t' read -r pattern instead; do
        [[ $pattern != '#'* ]] || continue
        refuse "plain English, please: $instead" "$pattern" "${spoken[@]}"
    done <scripts/banned_phrases.txt
}

check_subjects() {
    local hits
    git cat-file -e "$SUBJECTS_SINCE" 2>/dev/null || return 0 # no history: an archive or a shallow clone
    hits=$(git log --format=%s "$SUBJECTS_SINCE..HEAD" | awk -v most=$SUBJECT_MAX 'length($0) > most')
    [ -z "$hits" ] || report "a commit subject has at most $SUBJECT_MAX characters" "$hits"
    hits=$(git log --no-merges --format=%s "$SUBJECTS_SINCE..HEAD" |
        grep -vE '^[a-z][a-z0-9_., -]*: [^ ]+ ' || true)
    [ -z "$hits" ] || report "a commit subject has the form 'area: verb object'" "$hits"
}

check_format() {
    local bad
    if [ -z "$clang_format" ]; then
        [ $failed = 1 ] || { echo "skipped: clang-format 14 is missing (package clang-format)"; exit 77; }
    elif ! bad=$($clang_format --dry-run --Werror "${sources[@]}" 2>&1); then
        report "not as clang-format formats it (make format)" \
            "$(grep -oE '^[^: ]+:[0-9]+:[0-9]+: error' <<<"$bad" | awk -F: '!n[$1]++ {print $1 ":" $2}')"
    fi
}

# Files whose columns and phrases are checked
mapfile -t spoken < <(printf '%s\n' "${texts[@]}" | grep -v '^\./scripts/banned')
check_calls
check_layout
check_cleanup
check_language
check_subjects
check_format
exit $failed
