---@meta _
--- The globals of busted, for the checker.

---@param title string
---@param block fun()
function describe(title, block) end

---@param title string
---@param block fun()
function it(title, block) end

---@param block fun()
function setup(block) end

---@param block fun()
function teardown(block) end

---@param block fun()
function before_each(block) end

---@param block fun()
function after_each(block) end
