--- `make install` and `make uninstall`: they honour DESTDIR and PREFIX, and the
--- installed files work in place.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local server = redis.shared()

local function make(target, root)
  local output, ok = shell.run(("make -s %s B=%s PREFIX=/opt/x DESTDIR=%s")
    :format(target, shell.quote(ctl.binary:match("^(.*)/")), root))
  assert(ok, output)
end

local function files(folder, what)
  return (shell.run(("cd %s && find . %s | LC_ALL=C sort"):format(folder,
    what)))
end

teardown(ctl.clean)

describe("make install", function()
  it("puts the program, the core and the modules there", function()
    local root = ctl.folder() .. "/root"
    local tree = root .. "/opt/x"
    make("install", root)
    assert.equal("./opt", files(root, "-mindepth 1 -maxdepth 1"))
    assert.equal("./bin/rlockctl\n./lib/lua/5.4/rlock/core.so", files(tree,
      "-type f ! -path './share/*'"))
    assert.equal(files("lua",
      "-name '*.lua' ! -path './resty/*' ! -path './rlockctl/*'"),
      files(tree .. "/share/lua/5.4", "-type f"))

    local program = [[
      local rlock = require "rlock"
      rlock.run(function()
        local client <close> = assert(rlock.open())
        print(client:lock("cli:install"):with(function() return "mine" end))
      end)]]
    local lua = not ctl.is_sanitized() and "lua5.4" or nil
    for _, name in ipairs { tree .. "/bin/rlockctl", lua } do
      local result = ctl.run { program = name, "-", stdin = program,
        url = server.url, cwd = "/", env = {
          LUA_PATH = tree .. "/share/lua/5.4/?.lua",
          LUA_CPATH = tree .. "/lib/lua/5.4/?.so",
        } }
      assert.same({ 0, "mine\n", "" }, { result.status, result.out,
        result.err })
    end
  end)

  it("puts man pages and completions there", function()
    local root = ctl.folder() .. "/pages"
    local share = root .. "/opt/x/share"
    make("install", root)
    assert.equal("./bash-completion/completions/rlockctl\n"
      .. "./fish/vendor_completions.d/rlockctl.fish\n"
      .. "./zsh/site-functions/_rlockctl", files(share,
      "-type f ! -path './lua/*' ! -path './man/*'"))
    local pages = files(share .. "/man", "-type f")
    assert.equal("./man3/rlock.3lua", pages:match("[^\n]*$"))
    assert.truthy(pages:find("./man1/rlockctl-status.1\n", 1, true), pages)
  end)

  it("has what it needs for that after make demo, which runs deps", function()
    local missing = shell.run(([[
      cp -rs /usr/bin %s/bin && rm -f %s/bin/scdoc
      PATH=%s/bin spec/tools/deps --list build]]):gsub("%%s", ctl.folder()))
    assert.matches("apt%-get install [^\n]*scdoc", missing)
  end)

  it("has a name for this host in the tests, or installs it", function()
    local missing = shell.run(([[
      mkdir %s/no && printf '#!/bin/sh\nexit 2\n' >%s/no/getent &&
      chmod +x %s/no/getent && PATH=%s/no:$PATH spec/tools/deps --list test]])
      :gsub("%%s", ctl.folder()))
    assert.matches("apt%-get install [^\n]*netbase", missing)
  end)

  it("is undone by make uninstall, which leaves what is not ours", function()
    local root = ctl.folder() .. "/other"
    local kept = "./opt/x/share/lua/5.4/rlock/mine.lua"
    make("install", root)
    ctl.file("other/" .. kept, "")
    make("uninstall", root)
    assert.equal(kept, files(root, "-type f"))
    assert.equal("", files(root, "-path '*/lib/lua/5.4/*'"))
  end)
end)
