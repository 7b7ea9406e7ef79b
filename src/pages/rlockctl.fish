# fish completion for rlockctl

# Prints the words before the current one, without rlockctl, options and their
# values.
function __rlockctl_words
    set -l is_value no
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test $is_value = yes
            set is_value no
        else if contains -- $word $__rlockctl_valued
            set is_value yes
        else if test "$word" = --; or not string match -q -- '-*' $word
            printf '%s\n' $word
        end
    end
end

function __rlockctl_first
    test (count (__rlockctl_words)) = 0
end

function __rlockctl_is
    set -l words (__rlockctl_words)
    test "$words[1]" = $argv[1]; and not contains -- -- $words
end

function __rlockctl_runs
    set -l words (__rlockctl_words)
    test "$words[1]" = run; and contains -- -- $words
end

# Prints the names of locks that begin with the argument. The server is that of
# --url or RLOCK_URL; the local one is not started for this.
function __rlockctl_names
    set -lx RLOCK_URL $RLOCK_URL
    set -l words (commandline -opc)
    for i in (seq (count $words))
        if test "$words[$i]" = --url; and set -q words[(math $i + 1)]
            set RLOCK_URL $words[(math $i + 1)]
        else if string match -q -- '--url=*' $words[$i]
            set RLOCK_URL (string replace -- --url= '' $words[$i])
        end
    end
    if test -z "$RLOCK_URL"; or string match -q 'local:*' $RLOCK_URL
        timeout 1 rlockctl local status &>/dev/null; or return
    end
    set -l start (string replace -ra '[][*?^\\\\]' '\\\\$0' -- $argv[1])
    timeout 2 rlockctl -q ls --names --limit 100 -- "$start*" \
        2>/dev/null </dev/null
end

# Prints the candidates for a word of the help. Of a list of names, the last one
# is completed.
function __rlockctl_value
    switch "$argv[1]"
        case '*|*'
            string split '|' -- $argv[1]
        case 'NAME*' PATTERN
            set -l word (commandline -ct)
            set -l parts (string match -r '^((?:.*,)?)(.*)$' -- $word)
            for name in (__rlockctl_names "$parts[3]")
                printf '%s\n' $parts[2]$name
            end
        case POLICY
            printf '%s\n' $__rlockctl_kinds
        case COMMAND
            printf '%s\n' $__rlockctl_commands
        case FILE PATH
            __fish_complete_path (commandline -ct)
    end
end

# The arguments are the operands of the command.
function __rlockctl_operand
    set -l at (count (__rlockctl_words))
    string match -q -- '-*' (commandline -ct); and return
    test $at -le (count $argv); and __rlockctl_value $argv[$at]
end

complete -c rlockctl -n __rlockctl_runs -f -a '(complete -C (
    commandline -cp | string replace -r "^.*? -- " ""))'

# TABLE
