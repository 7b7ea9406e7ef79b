# bash completion for rlockctl                             -*- shell-script -*-

# TABLE

# Prints the names of locks that begin with $1. The server is $RLOCK_URL; the
# local one is not started for this.
_rlockctl_names() {
  case ${RLOCK_URL:-local:} in
    local:*) timeout 1 rlockctl local status || return 0 ;;
  esac >/dev/null 2>&1
  timeout 2 rlockctl -q ls --names --limit 100 -- \
    "$(printf '%s' "$1" | sed 's/[][*?^\\]/\\&/g')*" 2>/dev/null </dev/null
}

# Sets COMPREPLY to the candidates for $1, a word of the help, that begin with
# $2. Of a list of names, the last one is completed.
_rlockctl_value() {
  local name
  case $1 in
    *'|'*) COMPREPLY=($(compgen -W "${1//|/ }" -- "$2")) ;;
    NAME* | PATTERN)
      while IFS= read -r name; do
        if [[ $name == "${2##*,}"* ]]; then
          COMPREPLY+=("${2%"${2##*,}"}$(printf %q "$name")")
        fi
      done < <(RLOCK_URL=$url _rlockctl_names "${2##*,}") ;;
    POLICY) COMPREPLY=($(compgen -W "$_rlockctl_kinds" -- "$2")) ;;
    COMMAND) COMPREPLY=($(compgen -W "$_rlockctl_commands" -- "$2")) ;;
    FILE | PATH) compopt -o filenames
      COMPREPLY=($(compgen -f -- "$2")) ;;
  esac
}

# What `rlockctl run NAME --` runs.
_rlockctl_run() {
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [ "${COMP_WORDS[i]}" = -- ]; then break; fi
  done
  if declare -F _command_offset >/dev/null; then
    _command_offset $((i + 1))
  elif [ $((i + 1)) = "$COMP_CWORD" ]; then
    COMPREPLY=($(compgen -c -- "$1"))
  else
    COMPREPLY=($(compgen -f -- "$1"))
  fi
}

# Reads the words before the current one. Sets the caller's variables.
_rlockctl_read() {
  local word before=
  for word; do
    if [ "$value" ]; then
      if [ "$before" = --url ]; then url=${word//[\"\']/}; fi
      value=
    else
      case $word in
        --) after=yes ;;
        --url=*) url=${word#*=}; url=${url//[\"\']/} ;;
        -*) case " $options $_rlockctl_common " in
          *" $word="*) value=${options:+$options }$_rlockctl_common
            value=" $value" value=${value#*" $word="} value=${value%% *} ;;
          esac ;;
        *) if [ "$command" ]; then
            operand=$((operand + 1))
          else
            command=$word
            _rlockctl_table "$command"
          fi ;;
      esac
    fi
    before=$word
  done
}

_rlockctl() {
  local words cur= command= options= operands= operand=0 value= after=
  local url=${RLOCK_URL:-} line=${COMP_LINE:0:COMP_POINT} flags i
  # Not COMP_WORDS, in which a name is split at each colon.
  read -ra words <<<"$line"
  if [[ $line == *[![:blank:]] ]]; then
    cur=${words[${#words[@]} - 1]}
    unset "words[${#words[@]} - 1]"
  fi
  COMPREPLY=()
  _rlockctl_read "${words[@]:1}"
  if [ "$after" ] && [ "$command" = run ]; then _rlockctl_run "$cur"; return; fi
  if [[ ! $value && $cur == --*=* ]]; then
    _rlockctl_read "${cur%%=*}"
    cur=${cur#*=}
  fi
  if [ "$value" ]; then
    _rlockctl_value "$value" "$cur"
  elif [[ $cur == -* && ! $after ]]; then
    flags=" $options $_rlockctl_common"
    COMPREPLY=($(compgen -W "$(sed 's/=[^ ]*//g' <<<"$flags")" -- "$cur"))
  elif [ ! "$command" ]; then
    compopt -o filenames
    COMPREPLY=($(compgen -W "$_rlockctl_commands" -- "$cur")
      $(compgen -f -- "$cur"))
  else
    read -ra words <<<"$operands"
    _rlockctl_value "${words[operand]:-}" "$cur"
  fi
  # bash replaces only what follows the last of these.
  if [[ $cur == *[:=@]* ]]; then
    for i in "${!COMPREPLY[@]}"; do
      COMPREPLY[i]=${COMPREPLY[i]#"${cur%"${cur##*[:=@]}"}"}
    done
  fi
}

complete -F _rlockctl rlockctl
