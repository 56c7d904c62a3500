#!/bin/bash
# Tests the completion script of bash with the program's own --help.
#
#   check_completion.sh SOURCE MOEFARM
set -u
source=${1:?check_completion.sh SOURCE MOEFARM} program=${2:?check_completion.sh SOURCE MOEFARM}
PATH=$(dirname "$program"):$PATH
. "$source/deploy/completion/moefarm.bash"
cd "$source"
failed=0

# usage: completes EXPECTED WORD…   the last word is completed
completes() {
    local expected=$1
    shift
    COMP_WORDS=(moefarm "$@") COMP_CWORD=$#
    _moefarm
    [[ ${COMPREPLY[*]} == "$expected" ]] && return
    echo "moefarm $*: got '${COMPREPLY[*]}' instead of '$expected'"
    failed=1
}

completes "export" exp
completes "revoke-token revoke-key" revoke
completes "check merge diff coverage" csv ""
completes "stage" release st
completes "--fix --format" csv check --f
completes "--no-fix --no-json --no-summary" csv check --no
completes "--warmup --watch" submit --wa
completes "README.md" submit READ
completes "--url" --u
completes "" nonsense --fix
exit $failed
