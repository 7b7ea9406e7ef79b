# Prints what bash would offer for a line, by a file of completions:
#   bash spec/tools/complete.bash FILE LINE
# Splits the line as readline does, also at colons and equal signs.

# shellcheck disable=SC1090,SC2034
. "$1"
COMP_LINE=$2 COMP_POINT=${#2}
mapfile -t COMP_WORDS < <(sed -E 's/([:=]+)/\n\1\n/g; s/ +/\n/g' <<<"$2" |
  grep .)
if [[ $2 == *' ' ]]; then COMP_WORDS+=(""); fi
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }                        # only there while readline completes
_rlockctl
if [ "${#COMPREPLY[@]}" != 0 ]; then printf "%s\n" "${COMPREPLY[@]}"; fi
