--- A host for unit specs, whose tasks run at once and never wait; time passes
--- only in `sleep`. Specs give it their `connect`.

local function nothing() end

local function run(fn, ...)
  fn(...)
  return {}
end

---@param connect function see the host contract
---@return table # host
return function(connect)
  local time = 1000
  return {
    now = function() return time end,
    sleep = function(seconds) time = time + seconds end,
    log = nothing, random_number = function() return 0.5 end,
    daemon = run, service = run,
    guard = function(_, _, fn, ...) return fn(...) end,
    is_over = function() return false end,
    event = function()
      return { set = nothing, pause = function() return true end }
    end,
    connect = connect,
  }
end
