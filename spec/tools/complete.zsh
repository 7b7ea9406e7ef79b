# Prints what zsh offers for a line, by the completions in a folder:
#   zsh -f spec/tools/complete.zsh FOLDER LINE
# An interactive zsh in a pseudo-terminal completes it. Its compadd also prints.

zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -C -d $1/.compdump
show() {
  compadd() {
    local -a found
    if [[ ! \${@[1,(i)(-|--)]} == *-(O|A|D)* ]]; then
      builtin compadd -O found \"\$@\"
      print -rl -- '<'\${^found}'>'
    fi
    builtin compadd \"\$@\"
  }
  _main_complete
  unfunction compadd
  compstate[insert]= compstate[list]=
  print DO''NE
}
zle -C show complete-word show; bindkey '^I' show; print REA''DY"
zpty -r z text '*READY*'
zpty -wn z "$2"$'\t'
zpty -r z text '*DONE*'
print -r -- "$text" | grep -o '<[^>]*>' | tr -d '<>'
zpty -d z
