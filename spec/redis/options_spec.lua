--- Options and arguments that a call does not have raise where it was called,
--- and the message names those that it has.

local kinds = require "rlock.lock.kinds"
local rlock = require "rlock"

local client = assert(rlock.open { url = "redis://127.0.0.1:1", lazy = true })

teardown(function() client:close() end)

local function refuses(message, fn, ...)
  local args = table.pack(...)
  local ok, said = pcall(function()
    fn(table.unpack(args, 1, args.n))
    return nil
  end)
  assert.is_false(ok, message)
  assert.is_truthy(said:find(message, 1, true), said)
  assert.matches("options_spec.lua:%d+: ", said)
end

describe("the options of open", function()
  it("within others are checked", function()
    for message, options in pairs {
      ["bad option cafile of tls: must be one of ca, cert, key, server_name, "
        .. "verify"] = { tls = { cafile = "x" } },
      ["bad tls: must be a table such as"] = { tls = true },
      ["bad tls.ca: must be a string, is a number"] = { tls = { ca = 1 } },
      ["bad tls.verify: must be a boolean"] = { tls = { verify = "no" } },
      ["bad option user of sentinel: must be one of password, tls, username"] =
        { sentinel = { user = "x" } },
      ["bad sentinel: must be a table such as"] = { sentinel = "x" },
      ["bad sentinel.password: must be a string, is a number"] =
        { sentinel = { password = 1 } },
      ["bad option cafile of sentinel.tls: must be one of ca"] =
        { sentinel = { tls = { cafile = "x" } } },
      ["bad sentinel.tls: must be a table such as"] =
        { sentinel = { tls = 1 } },
      ["bad nat: must be a function, or a table"] = { nat = { 1 } },
      ["bad metrics: must be an array"] = { metrics = { a = "x" } },
    } do
      refuses(message, rlock.open, options)
    end
  end)

  it("within others may be right", function()
    local its = assert(rlock.open {
      url = "rediss+sentinel://127.0.0.1:1/x", lazy = true,
      tls = { ca = "x", server_name = "x", verify = false },
      sentinel = { password = "x", tls = { ca = "y" } },
    })
    its:close()
    assert(rlock.open { url = "rediss+sentinel://127.0.0.1:1/x", lazy = true,
      sentinel = { tls = false } }):close()
  end)
end)

describe("the options of", function()
  for _, kind in ipairs(kinds) do
    it(kind.factory .. " are checked", function()
      local message = kind.driver
        and ("bad options of client:%s: it has none"):format(kind.factory)
        or "bad option wiat: must be one of fenced, owner, "
          .. "replica_timeout, replicas"
      refuses(message, client[kind.factory], client, "x", { wiat = 1 })
    end)
  end

  it("barriers and multi-locks are refused, because they have none", function()
    local bad = { zz = 1 }
    refuses("bad options of client:barrier: it has none", client.barrier,
      client, "x", bad)
    refuses("bad options of client:double_barrier: it has none",
      client.double_barrier, client, "x", 2, bad)
    refuses("bad options of multi_lock: it has none", rlock.multi_lock,
      { client:lock "x" }, bad)
    assert(client:barrier("x", nil) and client:double_barrier("x", 2, nil))
    assert(rlock.multi_lock({ client:lock "x" }, nil))
  end)

  it("policy are checked, unless its extra does", function()
    local own = { name = "own", keys = function(name) return { name } end,
      server = {
        acquire = function() return { "held" } end,
        release = function() return { "freed" } end,
      } }
    local known = "bad option most: must be one of drift, fenced, "
      .. "owner, replica_timeout, replicas"
    refuses(known, client.policy, client, own, "x", { most = 1 })
    refuses(known, client.policy, client, "fair", "x", { most = 1 })
    refuses("bad options: must be a table such as", client.policy, client, own,
      "x", "me")
    own.extra = function(request) return { request.options.most } end
    assert(client:policy(own, "x", { most = 1, owner = "me" }))
    refuses("bad replica_timeout: ", client.policy, client, own, "x",
      { most = 1, replica_timeout = "1" })
    refuses("bad replicas: must be a whole number", client.policy, client, own,
      "x", { most = 1, replicas = 0 })
    refuses("bad owner: must be a string", client.policy, client, own, "x",
      { owner = 1 })
  end)

  it("calls are checked", function()
    local lock, permits = client:lock "x", client:permits "x"
    local semaphore, latch = client:semaphore "x", client:latch "x"
    local pair = client:read_write_lock "x"
    local of_lock = "bad option leese: must be one of lease, wait"
    local of_wait = "bad option leese: must be one of wait"
    local bad = { leese = 1 }
    for _, name in ipairs { "lock", "try_lock", "hold" } do
      refuses(of_lock, lock[name], lock, bad)
      refuses(of_lock, pair:read_lock()[name], pair:read_lock(), bad)
    end
    refuses(of_lock, lock.with, lock, bad, print)
    refuses(of_lock, permits.acquire, permits, bad)
    refuses(of_lock, permits.try_acquire, permits, bad)
    refuses(of_wait, semaphore.acquire, semaphore, 1, bad)
    refuses(of_wait, semaphore.try_acquire, semaphore, bad)
    refuses("bad option leese: must be one of ttl", semaphore.set, semaphore, 1,
      bad)
    refuses(of_wait, latch.wait, latch, bad)
    refuses("bad option leese of red_lock: must be one of", rlock.red_lock,
      { client }, "x", bad)
  end)
end)

describe("client:call", function()
  it("says which arguments it expects", function()
    refuses('bad argument #1 of client:call: must be a command, such as "PING"'
      .. ", is nil", client.call, client)
    refuses("bad argument #1 of client:call: must be a string or a number, is "
      .. "a table", client.call, client, {})
    refuses("bad argument #2 of client:call: must be a string or a number, is "
      .. "a table", client.call, client, "GET", {})
    refuses("bad argument #3 of client:call: must be a string or a number, is "
      .. "a nil", client.call, client, "SET", "x", nil)
  end)
end)
