--- A light thread that is killed while it waits: it waits no more, and gets
--- nothing. Its request goes on.

local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local HTTP = [[
  init_worker_by_lua_block {
    local rlock = require "resty.rlock"
    local eventually = require "spec.tools.eventually"
    locks = assert(rlock.open("%s"))
    local SECONDS = 10

    -- Something that is taken, a function that waits for it, one that frees
    -- it, and one that says whether it is free.
    local function of_lock(make)
      local holder = make { owner = "holder" }
      assert(holder:lock())
      return function() assert(make():lock()) end,
        function() assert(holder:unlock()) end,
        function() return assert(holder:peek()).state == "free" end
    end

    local function of_permits(permits)
      assert(permits:set(1))
      local taken = assert(permits:acquire())         -- an id, or true
      return function() assert(permits:acquire()) end,
        function()
          assert(permits:release(taken ~= true and taken or nil))
        end,
        function() return assert(permits:available()) == 1 end
    end

    local function multi(options)
      local lock = locks:lock("multi", options)
      if options then return lock end
      return rlock.multi_lock { lock, locks:lock("other") }
    end

    kinds = {
      lock = function()
        return of_lock(function(options) return locks:lock("l", options) end)
      end,
      fair_lock = function()
        return of_lock(function(options)
          return locks:fair_lock("f", options)
        end)
      end,
      multi_lock = function() return of_lock(multi) end,
      permits = function() return of_permits(locks:permits("p")) end,
      semaphore = function() return of_permits(locks:semaphore("s")) end,
    }

    local function someone_waits()
      for _, channel in pairs(locks.session.wakeup.channels) do
        if channel.is_live and channel.first then return true end
      end
      return false
    end

    local function nobody_waits() return not someone_waits() end

    -- Kills who waits, and frees what is waited for: before or after the wait
    -- is given up.
    function kill(kind, when)
      local wait, free, is_free = kinds[kind]()
      local thread = ngx.thread.spawn(wait)
      eventually(someone_waits, SECONDS, "someone waits")
      assert(ngx.thread.kill(thread))
      if when == "before" then free() end
      eventually(nobody_waits, SECONDS, "nobody waits")
      if when == "after" then free() end
      eventually(is_free, SECONDS, "it is free")
      ngx.print("done")
    end
  }
]]

local LOCATIONS = [[
  location = /kill { content_by_lua_block {
    kill(ngx.var.arg_kind, ngx.var.arg_free)
  } }
]]

describe("A light thread that is killed while it waits", function()
  local server, web

  before_each(function()
    server = redis.start()
    web = nginx.start { http = HTTP:format(server.url), locations = LOCATIONS }
  end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  for _, kind in ipairs {
    "lock", "fair_lock", "multi_lock", "permits", "semaphore",
  } do
    for when, what in pairs {
      after = "leaves the line (%s)", before = "takes nothing (%s)",
    } do
      it(what:format(kind), function()
        local status, body = web:get(("/kill?kind=%s&free=%s"):format(kind,
          when))
        assert.same({ 200, "done" }, { status, body }, web:log())
      end)
    end
  end
end)
