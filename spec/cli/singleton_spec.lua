--- examples/singleton.service: one of several hosts runs the program.

local ctl = require "spec.cli.ctl"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local UNIT = "examples/singleton.service"

local server = redis.shared()
local unit = assert(files.read(UNIT))

-- Does what systemd does on one host, with a short lease.
local function start_host()
  local words = { url = server.url }
  local line = unit:gsub("\\\n", ""):match("\nExecStart=([^\n]*)")
  line = line:gsub("%-%-ttl %d+s", "--ttl 2s")
  for word in line:gmatch("%S+") do words[#words + 1] = word end
  assert.equal("/usr/bin/rlockctl", table.remove(words, 1))
  assert.equal("/usr/local/bin/reporter", words[#words])
  words[#words] = ctl.folder() .. "/reporter"
  return ctl.start(words)
end

teardown(ctl.clean)

describe("the service of examples/", function()
  it("is fit for systemd", function()
    if not select(2, shell.run("command -v systemd-analyze")) then
      return pending("systemd is not installed")
    end
    ctl.file("bin/reporter", "#!/bin/sh\n")
    local text = unit:gsub("=/usr/bin/%S+", "=/bin/true")
    local path = ctl.file("reporter.service", text)
    assert.equal("", shell.run("systemd-analyze verify " .. path))
  end)

  it("runs on one host, and moves to another when that is gone", function()
    local reporter = ctl.file("reporter", "#!/bin/sh\necho runs\nexec sleep 99")
    shell.run("chmod +x " .. reporter)
    local first = start_host()
    first:says("runs")
    local second = start_host()
    assert.equal("", second:out())
    first:kill(9)
    second:says("runs")
    second:kill(15)
    assert.equal(143, second:wait().status)
  end)
end)
