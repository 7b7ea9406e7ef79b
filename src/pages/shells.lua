--- The operands and options of the commands, as a table for each shell.
--- Commands are as in completion.lua: { name, text, operands, options }, where
--- options are { flag, text, value }.

local kinds = require "rlock.lock.kinds"

local shells = {}

local function quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- The results of `fn` for each item of a list, as one text.
local function joined(list, separator, fn)
  local out = {}
  for i, item in ipairs(list) do out[i] = fn(item) end
  return table.concat(out, separator)
end

local function name_of(item) return item.name end

local kind_names = joined(kinds, " ", name_of)

-- bash ------------------------------------------------------------------------

-- --seed=N --json
local function bash_options(options)
  return quote(joined(options, " ", function(option)
    return option.flag .. (option.value and "=" .. option.value or "")
  end))
end

function shells.bash(commands, common)
  local cases = joined(commands, "\n", function(command)
    return ("    %s) options=%s operands=%s ;;"):format(command.name,
      bash_options(command.options),
      quote(table.concat(command.operands, " ")))
  end)
  return ("_rlockctl_commands=%s\n_rlockctl_kinds=%s\n_rlockctl_common=%s\n"
    .. "_rlockctl_table() {\n  case $1 in\n%s\n    *) operands=FILE ;;\n"
    .. "  esac\n}"):format(quote(joined(commands, " ", name_of)),
    quote(kind_names), bash_options(common), cases)
end

-- zsh -------------------------------------------------------------------------

-- '--seed=[random walks]:N:{_rlockctl_value N}'
local function zsh_option(option)
  local joint, value = "", ""
  if option.value then
    joint = option.flag:find("^%-%-") and "=" or "+"
    value = (":%s:{_rlockctl_value %s}"):format(option.value:gsub(":.*", ""),
      quote(option.value))
  end
  return quote(("%s%s[%s]%s"):format(option.flag, joint,
    option.text:gsub("[%[%]\\:]", "\\%0"), value))
end

local function zsh_options(options)
  return joined(options, "\n    ", zsh_option)
end

local function zsh_case(command)
  return ("  %s)\n    options=(%s)\n    operands=(%s) ;;"):format(
    command.name, zsh_options(command.options),
    quote(table.concat(command.operands, " ")))
end

function shells.zsh(commands, common)
  local names = joined(commands, "\n  ", function(command)
    return quote(command.name .. ":" .. command.text)
  end)
  return ("_rlockctl_commands=(%s)\n_rlockctl_kinds=(%s)\n"
    .. "_rlockctl_common=(%s)\n_rlockctl_table() {\n  case $1 in\n%s\n"
    .. "  *) return 1 ;;\n  esac\n}"):format(names, kind_names,
    zsh_options(common), joined(commands, "\n", zsh_case))
end

-- fish ------------------------------------------------------------------------

local function fish_options(condition, options)
  return joined(options, "", function(option)
    local dashes, name = option.flag:match("^(%-+)(.*)$")
    return ("complete -c rlockctl%s -%s %s%s%s\n"):format(condition,
      dashes == "--" and "l" or "s", name,
      option.value and (" -x -a \"(__rlockctl_value %s)\""):format(
        quote(option.value)) or "",
      option.text ~= "" and " -d " .. quote(option.text) or "")
  end)
end

local function fish_command(command)
  local condition = (" -n '__rlockctl_is %s'"):format(command.name)
  local operands = joined(command.operands, " ", quote):gsub(" '%-%-'$", "")
  return ("complete -c rlockctl -n __rlockctl_first -a %s -d %s\n%s"
    .. "complete -c rlockctl%s -f -a \"(__rlockctl_operand %s)\"\n"):format(
    command.name, quote(command.text),
    fish_options(condition, command.options), condition, operands)
end

-- The options that take a value.
local function valued(options)
  return joined(options, "", function(option)
    return option.value and " " .. option.flag or ""
  end)
end

function shells.fish(commands, common)
  return ("set -g __rlockctl_commands %s\nset -g __rlockctl_kinds %s\n"
    .. "set -g __rlockctl_valued%s%s\n%s%s"):format(
    joined(commands, " ", name_of), kind_names, valued(common),
    joined(commands, "", function(command) return valued(command.options) end),
    fish_options("", common), joined(commands, "", fish_command))
end

return shells
