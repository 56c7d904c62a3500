# Completion of moefarm's commands and options in bash.
# In zsh, first run autoload -U bashcompinit; bashcompinit
# The names come from `moefarm --help` and `moefarm COMMAND --help`, so they are always those of the program.

_moefarm_commands() {
    "$@" --help 2>/dev/null | sed -n '/^commands/,/^$/s/^  \([a-z][a-z -]*[a-z]\).*/\1/p' |
        sed 's/  .*//; s/ [A-Z\[].*//'
}

_moefarm_options() {
    "$@" --help 2>/dev/null | sed -n 's/^  \(-[^ ].*\)/\1/p' | grep -oE -- '--(\[no-\])?[a-z0-9-]+' |
        sed 's/^--\[no-\]\(.*\)/--\1\n--no-\1/' | sort -u
}

_moefarm() {
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} i
    local -a words=("$program")
    COMPREPLY=()
    # the words before the cursor that name a command: "csv check"
    for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
        [[ ${COMP_WORDS[i]} == [a-z]* ]] || break
        [[ $i == 1 || ${COMP_WORDS[1]} == csv || ${COMP_WORDS[1]} == release ]] || break
        words+=("${COMP_WORDS[i]}")
    done
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$(_moefarm_options "${words[@]}")" -- "$current"))
    elif [[ ${#words[@]} == 1 || "${words[*]:1}" == csv || "${words[*]:1}" == release ]]; then
        COMPREPLY=($(compgen -W "$(_moefarm_commands "${words[@]}" | awk '{print $NF}')" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}

complete -o filenames -F _moefarm moefarm
