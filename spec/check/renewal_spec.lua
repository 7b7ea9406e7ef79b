--- Redisson's tests of renewals, under the same names, for every kind of lock,
--- on virtual time.

local kinds = require "spec.tools.kinds"
local stage = require "spec.simulate.stage"

local function is_ours(kind) return kind ~= kinds.of.few end

for _, which in ipairs(kinds.names(is_ours)) do
  local kind = kinds.of[which]
  local side = which:match "write" and "Write" or which:match "read" and "Read"
    or ""
  local renewed = kind.is_entered_once and "" or ", testLockReentrantRenew"
  if which == "multi" then renewed = renewed .. ", testRenewExpiration" end

  -- The lock, and its servers.
  local function open(self)
    local clients = { self:client() }
    for i = 2, kind.nodes or 1 do
      clients[i] = self:client(nil, self:add_server("redis" .. i))
    end
    return kind.lock(clients, "lock"), self.network.servers
  end

  describe("rows of " .. which .. ":", function()
    it("test" .. side .. "LockAfterTimeout" .. renewed .. ": what the server "
      .. "forgot is lost, what is taken then is renewed", function()
        stage.play(function(self)
          local lock, servers = open(self)
          assert.is_true((lock:lock()))
          for _, server in ipairs(servers) do server:restart(0.5, "nothing") end
          self.sleep(40)                  -- red locks do not count them earlier
          assert.equal("lost", lock:state())
          assert.equal("lost", select(2, lock:unlock()))
          if not kind.is_entered_once then
            for _ = 1, 2 do assert.is_true((lock:lock())) end
            for _ = 1, 2 do assert.is_true(lock:unlock()) end
          end
          assert.is_true((lock:lock()))
          for _ = 1, 10 do
            self.sleep(9)
            assert.is_true(lock:is_held())
          end
          assert.is_true(lock:unlock())
        end)
      end)
  end)
end
