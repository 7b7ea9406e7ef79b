--- Generates the completions for bash, zsh and fish. Each template is a file
--- beside this one; the table of commands replaces its line "# TABLE".

local shells = require "shells"

local completion = {}

local OPTION = "%-%-?%a[%w-]*"

-- Adds the options of a term, such as -w, --wait DUR. A command's own options
-- are declared in its module; common options are only in the help text.
local function add_options(options, term, text, declared)
  for flag in term:gmatch("%f[%w-]" .. OPTION) do
    local known = declared and declared[flag]
    if known or not declared then
      options[#options + 1] = { flag = flag, text = text,
        value = known and known[2] or not known and term:match(" (%u+)$") }
    end
  end
end

local function has(options, flag)
  for _, option in ipairs(options) do
    if option.flag == flag then return true end
  end
end

local function read_lists(options, blocks, declared)
  for _, block in ipairs(blocks) do
    for _, entry in ipairs(block.kind == "list" and block or {}) do
      if entry.term:find("^%-") then
        local text = (entry.text .. "; "):match("^(.-)[;:] ")
        add_options(options, entry.term, text, declared)
      end
    end
  end
end

-- The options that are declared, but explained only in a text or by another
-- command.
local function add_others(options, declared)
  local flags = {}
  for flag in pairs(declared) do flags[#flags + 1] = flag end
  table.sort(flags)
  for _, flag in ipairs(flags) do
    if not has(options, flag) then
      options[#options + 1] = { flag = flag, text = "",
        value = declared[flag][2] }
    end
  end
end

-- The operands of rlockctl NAME A [B] -- C: A, B and --.
local function operands_of(synopsis)
  local operands = {}
  local line = synopsis:gsub("^rlockctl %l+", ""):gsub("%[options%]", "")
    :gsub("%[%-[^%]]*%]", ""):gsub("%[,[^%]]*%]", "")
  for word in line:gmatch("[^%s%[%]]+") do
    operands[#operands + 1] = word
    if word == "--" then break end
  end
  return operands
end

local function describe(command)
  local options = {}
  read_lists(options, command, command.options)
  add_others(options, command.options)
  return { name = command.name, text = command.about, options = options,
    operands = operands_of(command.synopsis[1]) }
end

-- The options of every command.
local function common_of(general)
  local options = {}
  read_lists(options, general)
  return options
end

-- Copies the text of an option to the same option of commands without one.
local function share_texts(commands)
  local texts = {}
  for _, command in ipairs(commands) do
    for _, option in ipairs(command.options) do
      texts[option.flag] = texts[option.flag]
        or option.text ~= "" and option.text or nil
    end
  end
  for _, command in ipairs(commands) do
    for _, option in ipairs(command.options) do
      if option.text == "" then option.text = texts[option.flag] or "" end
    end
  end
end

--- The files of the completions.
---@param read function path -> text
---@param commands table of help.lua
---@param general table of help.lua
---@return table # name -> text
function completion.files(read, commands, general)
  local described, files = {}, {}
  for i, command in ipairs(commands) do described[i] = describe(command) end
  share_texts(described)
  local common = common_of(general)
  for shell, name in pairs { bash = "rlockctl.bash", zsh = "_rlockctl",
      fish = "rlockctl.fish" } do
    local text = shells[shell](described, common):gsub("%%", "%%%%")
    files[name] = read("src/pages/" .. name):gsub("# TABLE", text)
  end
  return files
end

return completion
