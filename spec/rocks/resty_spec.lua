--- The rock lua-resty-rlock, installed in RESTY_TREE, in a real nginx; and the
--- folder for opm.

local files = require "spec.tools.files"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local tree = assert(os.getenv("RESTY_TREE"), "run spec/rocks/run")
local opm = assert(os.getenv("OPM"))
local lua = tree .. "/share/lua/5.1"

-- Serves one page, made by this code; rlock is found in the tree alone.
local function page(code)
  local server = nginx.start {
    http = ([[init_by_lua_block {
      package.path = "%s/?.lua;/usr/share/lua/5.1/?.lua"
    }]]):format(lua),
    locations = ("location / { content_by_lua_block { %s } }"):format(code),
  }
  finally(function() server:stop() end)
  local answer = shell.run(([[bash -c '
    exec 3<>/dev/tcp/127.0.0.1/%d
    printf "GET / HTTP/1.0\r\n\r\n" >&3
    cat <&3']]):format(server.port))
  local status, body = answer:match("^HTTP/1.1 (%d+) .-\r\n\r\n(.*)$")
  assert.equal("200", status, server:log())
  return body
end

describe("the rock lua-resty-rlock", function()
  it("has files of which each can be loaded", function()
    local names = {}
    for name in shell.run(("cd %s && find . -name '*.lua'"):format(lua))
        :gmatch("%./([^\n]+)%.lua") do
      names[#names + 1] = ("%q"):format((name:gsub("/", ".")))
    end
    assert.equal(("%d"):format(#names), page(([[
      local count = 0
      for _, name in ipairs { %s } do
        if require(name) then count = count + 1 end
      end
      ngx.print(count)]]):format(table.concat(names, ", "))))
  end)

  it("locks", function()
    assert.equal("true\ntrue\nnil not_held", page(([[
      local client = assert(require("resty.rlock").open("%s"))
      local lock = client:fenced_lock("rocks:resty")
      ngx.say((lock:lock()))
      ngx.say((lock:unlock()))
      local ok, code = lock:unlock()
      ngx.print(tostring(ok), " ", code)]]):format(redis.shared().url)))
  end)
end)

describe("the folder for opm", function()
  local function read(name) return assert(files.read(opm .. "/" .. name)) end

  it("has a version where opm looks for it", function()
    local main = read("dist.ini"):match("\nmain_module = (%S+)\n")
    local version = read(main):match("VERSION%s*=%s*(%S+)")
      :gsub("[;,'\"{}()<>]", "")
    assert.equal(require("rlock")._VERSION, version)
  end)

  it("has every module and its READMEs", function()
    assert.matches("^# rlock", read "README.md")
    for path in read("README.md"):gmatch("%((lib/[^)#]*)") do
      assert.matches("^# ", read(path))
    end
    assert.equal("README.md", shell.run(("ls %s/lib/rlockctl"):format(opm)))
    assert.equal("", shell.run(
      ("diff -rq -x '*.md' -x rlockctl %s %s/lib"):format(lua, opm)))
  end)
end)
