--- The completions for bash, zsh and fish, in these shells.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local terminal = require "spec.tools.terminal"

local on_terminal = terminal.only(describe, pending)

local KINDS = { "fair", "fair_readwrite", "fenced" }
local NAMES = { "tab:one", "tab:two", "tab three" }

local server = redis.start()
local holder                             -- a program that holds NAMES
local folder, root = ctl.folder() .. "/pages", shell.run("pwd")

-- Completes a line in a shell; returns the words and what went to stderr.
local function complete(name, line, url)
  local words = name == "fish"
    and { "-N", "-c", "source " .. folder .. "/rlockctl.fish\n"
      .. "complete -C " .. shell.quote(line) }
    or { name == "zsh" and "-f" or "--norc",
      root .. "/spec/tools/complete." .. name,
      name == "zsh" and folder or folder .. "/rlockctl.bash", line }
  local result = ctl.run { program = name, url = url or server.url,
    cwd = ctl.folder() .. "/here", env = {
      PATH = ctl.folder() .. "/bin:" .. os.getenv("PATH"),
      HOME = ctl.folder(), RLOCK_URL = url or server.url,
    }, table.unpack(words) }
  local found = {}
  for word in result.out:gmatch("[^\n]+") do
    found[#found + 1] = word:match("^[^\t]*")
  end
  table.sort(found)
  return found, result.err
end

local function has(list, word)
  for _, one in ipairs(list) do
    if one == word then return true end
  end
  return false
end

-- A busy machine may take longer than the completion waits for names.
local function offers(name, line, wanted, url)
  table.sort(wanted)
  local found, err
  pcall(eventually, function()
    found, err = complete(name, line, url)
    return table.concat(found, "\n") == table.concat(wanted, "\n")
  end, 4 * slow)
  assert.same({ wanted, "" }, { found, err }, line)
end

setup(function()
  shell.run(("mkdir -p %s %s/bin %s/here && ln -s %s %s/bin/rlockctl"):format(
    folder, ctl.folder(), ctl.folder(), shell.quote(ctl.binary), ctl.folder()))
  ctl.file("here/job.lua", "")
  ctl.output { "--lua-path", "src/pages", "src/pages/write.lua", folder }
  holder = ctl.start { "-", url = server.url, stdin = ([[
    local rlock = require "rlock"
    local client = rlock.open()
    for _, name in ipairs { "%s" } do assert(client:lock(name):lock()) end
    print "ready"
    rlock.sleep(1e6)]]):format(table.concat(NAMES, '", "')) }
  holder:says("ready")
end)

teardown(function()
  holder:kill(9)
  holder:wait()
  server:stop()
  ctl.clean()
end)

for _, name in ipairs { "bash", "zsh", "fish" } do
  local is_here = select(2, shell.run("command -v " .. name))
  local it = is_here and it or function(what)
    it(what, function() pending(name .. " is not installed") end)
  end

  local describe = name == "zsh" and on_terminal or describe

  describe("completion in " .. name, function()
    it("offers commands and programs", function()
      offers(name, "rlockctl sta", { "status" })
      local found = complete(name, "rlockctl ")
      for _, word in ipairs { "check", "ls", "status", "job.lua" } do
        assert.is_true(has(found, word), word)
      end
    end)

    it("offers a command's options and their values", function()
      local found = complete(name, "rlockctl check --")
      for _, word in ipairs { "--seed", "--trace", "--url", "--help" } do
        assert.is_true(has(found, word), word)
      end
      assert.is_false(has(found, "--server"))
      offers(name, "rlockctl status --policy f", { table.unpack(KINDS) })
      offers(name, "rlockctl check --trace jo", { "job.lua" })
    end)

    it("offers values for an operand", function()
      offers(name, "rlockctl -v check f", { table.unpack(KINDS) })
      offers(name, "rlockctl check --seed 7 f", { table.unpack(KINDS) })
      offers(name, "rlockctl local ", { "start", "status", "stop" })
      assert.is_false(has(complete(name, "rlockctl local start "), "stop"))
      offers(name, "rlockctl help stat", { "status" })
    end)

    it("offers the names of locks", function()
      local spaced = name == "bash" and "tab\\ three" or "tab three"
      offers(name, "rlockctl status ", { "tab:one", "tab:two", spaced })
      -- bash completes what follows a colon
      offers(name, "rlockctl break tab:", name == "bash" and { "one", "two" }
        or { "tab:one", "tab:two" })
      offers(name, "rlockctl --url " .. server.url .. " status tab:o",
        { name == "bash" and "one" or "tab:one" }, "unix:///nowhere")
    end)

    it("offers counters, names with two spaces, and a hundred names", function()
      local client <close> = rlock.open(server.url)
      assert(client:latch("few:latch"):set(1))
      assert(client:lock("few:a  b"):lock { lease = 60 })
      for i = 1, 120 do
        assert(client:lock("many:" .. i):lock { lease = 60 })
      end
      finally(function()
        server:cli("EVAL", [[
          for _, pattern in ipairs(ARGV) do
            redis.pcall("del", unpack(redis.call("keys", pattern)))
          end]], "0", "few:*", "many:*", "rlock_request:*")
      end)
      local start = name == "bash" and "" or "few:"
      offers(name, "rlockctl status few:", { start .. "latch",
        start .. (name == "bash" and "a\\ \\ b" or "a  b") })
      eventually(function()
        return #complete(name, "rlockctl status many:") == 100
      end, 4 * slow)
    end)

    it("quotes names, and offers none with control characters", function()
      local client <close> = rlock.open(server.url)
      local names, words = { 'odd"quote', "odd'one", "odd\\back", "odd$x",
        "oddü" }, {}
      for _, odd in ipairs { "odd\nline", "odd\27[2J", "odd\255byte" } do
        assert(client:lock(odd):lock { lease = 60 })
      end
      for i, odd in ipairs(names) do
        assert(client:lock(odd):lock { lease = 60 })
        words[i] = odd
        if name == "bash" then
          words[i] = ctl.run { program = "bash", "-c", 'printf %q "$1"', "-",
            odd }.out
        end
      end
      finally(function()
        server:cli("EVAL", [[redis.call("del",
          unpack(redis.call("keys", "odd*")))]], "0")
      end)
      offers(name, "rlockctl status odd", words)
    end)

    it("offers what `run` runs, after the last of several locks", function()
      local words = { bash = "one", zsh = "tab:one", fish = "x,tab:one" }
      offers(name, "rlockctl run --fair x,tab:o", { words[name] })
      offers(name, "rlockctl run -w 5 tab -- rlockc", { "rlockctl" })
      offers(name, "rlockctl run tab -- cat jo", { "job.lua" })
    end)

    it("offers no names, silently, without a server", function()
      offers(name, "rlockctl status ", {}, "unix:///nowhere")
      offers(name, "rlockctl status ", {}, "redis://x")
    end)

    it("waits only briefly for a server", function()
      server:pause()
      finally(function() server:resume() end)
      offers(name, "rlockctl status ", {})
    end)

    it("does not start the local server", function()
      offers(name, "rlockctl status ", {}, "local:")
      assert.equal("local: does not run\n", ctl.run { "local", "status" }.out)
    end)
  end)
end

on_terminal("completion in an interactive bash", function()
  it("completes as the user types", function()
    local screen = terminal.open(shell.words { "env", "RLOCK_URL="
      .. server.url, "PATH=" .. ctl.folder() .. "/bin:" .. os.getenv("PATH"),
      "bash", "--norc", "--noprofile" }, { folder = ctl.folder() })
    finally(function() screen:close() end)
    screen:type("source " .. folder .. "/rlockctl.bash\n")
    screen:type "rlockctl sta\ttab:o\t\n"
    screen:shows '"tab:one" is held'
    local client <close> = rlock.open(server.url)
    local lock = client:lock 'say "\\so'
    assert(lock:lock())
    screen:type "rlockctl sta\tsay\t\n"
    screen:shows '"say \\"\\\\so" is held'
    assert(lock:unlock())
  end)
end)
