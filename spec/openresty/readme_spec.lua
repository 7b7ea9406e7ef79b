--- The README's section on OpenResty: its synopsis runs, and the names in it
--- exist.

local at_once = require "spec.tools.at_once"
local files = require "spec.tools.files"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local readme = files.read("lua/resty/README.md")

local SECTION = "\n```nginx\n(.-)\n```"

-- The synopsis as arguments of nginx.start: what is in http { } and server { }.
local function synopsis(server)
  local text = readme:match(SECTION):gsub("redis://127%.0%.0%.1", server.url)
    :gsub("lua_package_path [^\n]*", ""):gsub("lua_socket_log[^\n]*", "")
  local http, locations = text:match("^(.*)\nserver {(.*)}%s*$")
  return http, locations:gsub("listen [^\n]*", "")
end

local PROBE = [[
  location = /probe {
    content_by_lua_block {
      local locks = require("resty.rlock").open("%s")
      local lock = locks:fenced_lock("probe")
      assert(lock:lock())
      ngx.print("probed")
    }
    header_filter_by_lua_block {
      local rlock = require "resty.rlock"
      local locks = rlock.open("%s")
      local lock = locks:fenced_lock("probe")
      assert(lock:need(1) and lock:valid_for() > 1)
      assert(lock:state() == "held" and lock:token())
      assert(lock:on_lost(function() end))
      assert(rlock.multi_lock { lock })
      assert(rlock.red_lock({ locks, rlock.open "redis://127.0.0.2",
        rlock.open "redis://127.0.0.3" }, "red"))
      ngx.header["Probed"] = select(2, lock:unlock())
    }
  }
]]

describe("The README for OpenResty", function()
  local server, web

  setup(function()
    server = redis.start()
    local http, locations = synopsis(server)
    web = nginx.start {
      http = http, locations = locations .. PROBE:format(server.url,
        server.url),
    }
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  local function pay_at_once(shop)
    local answers = at_once(3, function()
      return { shop:get("/invoice?number=4711") }
    end)
    for _, answer in ipairs(answers) do
      assert.same({ 200, "paid\n" }, { answer[1], answer[2] })
    end
    assert.equal("0", server:cli("EXISTS", "invoice:4711"))
  end

  it("has a synopsis that runs", function() pay_at_once(web) end)

  it("has a synopsis that runs with lua_code_cache off", function()
    local http, locations = synopsis(server)
    local other = nginx.start {
      http = http, server = "lua_code_cache off;", locations = locations,
    }
    pay_at_once(other)
    assert.is_nil(other:log():find("[error]", 1, true))
    other:stop()
  end)

  it("says what can be called in any phase", function()
    local status, body, head = web:get("/probe")
    assert.same({ 200, "probed" }, { status, body }, web:log())
    assert.matches("Probed: refused", head)
  end)

  it("names calls that there are", function()
    local rlock = require "resty.rlock"
    local client = assert(rlock.open(server.url))
    local known = { rlock = rlock, client = client, lock = client:lock("x") }
    local count = 0
    for line in readme:gmatch("%*%*syntax:%*%* ([^\n]*)") do
      local object, name = line:gsub("\\", ""):match("(%l+)[.:]([%l_]+)%(")
      assert.equal("function", type(known[object][name]), line)
      count = count + 1
    end
    assert.equal(10, count)
    assert.equal(10, select(2, readme:gsub("%*%*context:%*%* ", "")))
    for names in readme:gmatch("\n### ([^\n]*)") do
      for name in names:gsub(" and .*", ""):gmatch("[%l_]+") do
        assert.truthy(rlock[name] or client[name] or known.lock[name], name)
      end
    end
  end)
end)
