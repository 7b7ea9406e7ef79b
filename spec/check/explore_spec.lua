--- The search behind rlockctl check, on a toy: a register of which each step
--- sets one bit. It is faulty when certain bits have been set in their order.

local explore = require "rlockctl.check.explore"

local function toy(wanted, n)
  local state_of = {}
  state_of.__index = state_of
  function state_of:fork()
    return setmetatable(table.move(self, 1, #self, 1, {}), state_of)
  end
  function state_of:text() return table.concat(self, " ") end
  local model = {}
  function model:start() return setmetatable({}, state_of) end
  function model:transitions(state)
    local list = {}
    for bit = 1, #state < 12 and n or 0 do list[bit] = { bit = bit } end
    return list
  end
  function model:take(state, step) state[#state + 1] = step.bit end
  function model:judge_step() end
  function model:judge(state)
    local found = 0
    for _, bit in ipairs(state) do
      if bit == wanted[found + 1] then found = found + 1 end
    end
    return found == #wanted and "all in order" or nil
  end
  return model
end

local function after(n)
  return function()
    n = n - 1
    return n < 0
  end
end

local function bits(trace)
  local list = {}
  for i, step in ipairs(trace) do list[i] = step.bit end
  return list
end

describe("the search", function()
  it("finds a shortest trace", function()
    local result = explore.run(toy({ 3, 1, 2 }, 3))
    assert.equal("all in order", result.fault)
    assert.same({ 3, 1, 2 }, bits(result.trace))
    assert.equal(3, explore.follow(toy({ 3, 1, 2 }, 3), result.trace).steps)
  end)

  it("is complete if there is none", function()
    local result = explore.run(toy({ 4 }, 2))
    assert.same({ true, 2^13 - 1 }, { result.is_complete, result.states })
  end)

  it("walks at random, and shrinks what it finds", function()
    local model = toy({ 1, 2, 3, 4, 1 }, 6)
    local result = explore.run(model, after(0))
    assert.is_nil(result.fault)
    explore.walk(model, result, 7, after(1000))
    assert.equal("all in order", result.fault)
    assert.same({ 1, 2, 3, 4, 1 }, bits(result.trace))
    local again = explore.walk(model, explore.run(model, after(0)), 7,
      after(1000))
    assert.same({ result.walks, result.steps }, { again.walks, again.steps })
    assert.equal(7, again.seed)
  end)

  it("stops to walk", function()
    local result = explore.walk(toy({ 9 }, 2), { steps = 0 }, 1, after(9))
    assert.same({ 10, nil }, { result.walks, result.fault })
  end)
end)
