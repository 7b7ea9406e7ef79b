--- Names the branches of a file's functions, independent of their text: the
--- second `else` of f is "f: else 2", what follows its first loop is "f: after
--- for 1". A function's branches are numbered in their order, by keyword:
---
---   start, if 1, elseif 1, else 1, for 1, while 1, repeat 1, do 1, function 1
---   after if 1, ...     the rest of the block
---   test of elseif 1    its condition
---   and 1, or 1         a line that begins with this operator
---
--- Functions of the same name are numbered together, anonymous ones belong to
--- the function around them.

local lexer = require "rlock.script.lexer"

local branches = {}
branches.__index = branches

local closers = lexer.set "elseif else end until"

-- The next number of this keyword in this function, as "keyword n".
function branches:numbered(keyword)
  local name = self.name .. ": " .. keyword
  self.counts[name] = (self.counts[name] or 0) + 1
  return keyword .. " " .. self.counts[name]
end

-- Opens a block: its branch, and the one that follows it.
function branches:open(branch, following)
  table.insert(self.blocks, { branch = branch, name = self.name,
    following = following or "after " .. branch })
end

local function name_at(tokens, i)
  local parts = {}
  while tokens[i].kind ~= "(" do
    parts[#parts + 1] = tokens[i].text
    i = i + 1
  end
  return table.concat(parts)
end

local enter = {}                        -- keyword -> what it does

enter["function"] = function(self, i)
  local name = name_at(self.tokens, i + 1)
  local branch = name == "" and self:numbered "function" or "start"
  self:open(branch, self.branch)
  self.branch = branch
  if name ~= "" then self.name = name end
end

enter["if"] = function(self) self:open(self:numbered "if") end

enter["elseif"] = function(self)
  local block = self.blocks[#self.blocks]
  block.branch = self:numbered "elseif"
  self.branch = "test of " .. block.branch
end

enter["then"] = function(self)
  self.branch = self.blocks[#self.blocks].branch
end

enter["else"] = function(self) self.branch = self:numbered "else" end

local function loop(self, i)
  self:open(self:numbered(self.tokens[i].kind))
  self.has_head = true                  -- its `do` comes later
end

enter["for"], enter["while"] = loop, loop

enter["do"] = function(self)
  if not self.has_head then self:open(self:numbered "do") end
  self.has_head = false
  self.branch = self.blocks[#self.blocks].branch
end

enter["repeat"] = function(self)
  self:open(self:numbered "repeat")
  self.branch = self.blocks[#self.blocks].branch
end

enter["end"] = function(self)
  local block = table.remove(self.blocks)
  self.name, self.branch = block.name, block.following
end

enter["until"] = enter["end"]

-- The branch of a line that begins with token i.
local function branch_at(self, i)
  local kind = self.tokens[i].kind
  if kind == "and" or kind == "or" then
    return ("%s: %s"):format(self.name, self:numbered(kind))
  end
  return ("%s: %s"):format(self.name, self.branch)
end

---@param text string of a file that loads
---@return table # line -> "function: branch"; a line of a long string has none
function branches.of(text)
  local self = setmetatable({ tokens = lexer.tokens(text), blocks = {},
    counts = {}, name = "file", branch = "start" }, branches)
  local lines, last = {}, 0
  for i, token in ipairs(self.tokens) do
    local is_first, before = token.line > last, self.name
    local closes = closers[token.kind]
    if is_first and not closes then lines[token.line] = branch_at(self, i) end
    if enter[token.kind] then enter[token.kind](self, i) end
    if is_first and closes
        or token.kind == "function" and self.name ~= before then
      lines[token.line] = branch_at(self, i)
    end
    last = token.line
  end
  return lines
end

return branches
