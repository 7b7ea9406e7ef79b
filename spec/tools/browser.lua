--- A headless Chromium for specs that run in nginx, with a profile of its own.
--- It ends with the test process.
---
---   local page = browser.start()
---   page:go("http://127.0.0.1:8080/")
---   page:run("return document.title")                   --> a value
---
--- Chromium is driven by its chromedriver: the W3C's WebDriver, JSON over HTTP.

local files = require "spec.tools.files"
local json = require "cjson"
local shell = require "spec.tools.shell"

local browser = {}

local Page = {}
Page.__index = Page

local SECONDS = 60                     -- timeout of a command

local FLAGS = [[--headless --no-sandbox --disable-gpu --disable-quic
  --no-first-run --disable-background-networking --disable-component-update
  --disable-sync --disable-breakpad --remote-debugging-port=0]]

--- Are Chromium and its driver installed?
function browser.is_here()
  return select(2, shell.run("command -v chromium && command -v chromedriver"))
end

-- Starts a program; returns its folder, its pid and the port, which `pattern`
-- captures from its output once that says `ready`.
local function start(ready, words, pattern)
  local folder, pid = shell.daemon(nil, ready, "setsid " .. words)
  if not folder then error("no browser: " .. pid, 0) end
  -- kill its whole process group
  shell.run(("echo -%d >%s/pid"):format(pid, shell.quote(folder)))
  local text = shell.run("cat " .. shell.quote(folder .. "/log"))
  return { folder = folder, pid = pid, port = assert(text:match(pattern)) }
end

local function stop(program)
  os.remove(program.folder .. "/pid")
  shell.run(("kill -KILL -%d"):format(program.pid))
  shell.finish(program.pid)
  shell.run("rm -rf " .. shell.quote(program.folder))
end

-- Sends a WebDriver command; returns its value.
local function send(port, method, path, values)
  local body = values and json.encode(values) or ""
  local socket = ngx.socket.tcp()
  socket:settimeout(SECONDS * 1000)
  assert(socket:connect("127.0.0.1", tonumber(port)))
  assert(socket:send(("%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n"
    .. "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s")
    :format(method, path, port, #body, body)))
  local head = assert(socket:receiveuntil("\r\n\r\n")())
  local size = tonumber(head:match("\n[Cc]ontent%-[Ll]ength: *(%d+)"))
  local value = json.decode(assert(socket:receive(size))).value
  socket:close()
  if not head:find("^HTTP/%S+ 200") then
    error(("%s: %s"):format(path, value.message), 2)
  end
  return value
end

--- Starts a browser.
function browser.start()
  local self = setmetatable({}, Page)
  self.chromium = start("DevTools listening on ",
    'chromium --user-data-dir="$d/profile" ' .. FLAGS:gsub("%s+", " ")
    .. " about:blank", "DevTools listening on ws://127%.0%.0%.1:(%d+)")
  self.driver = start("started successfully", "chromedriver --port=0",
    "started successfully on port (%d+)")
  local session = send(self.driver.port, "POST", "/session", {
    capabilities = { alwaysMatch = { ["goog:chromeOptions"] = {
      debuggerAddress = "127.0.0.1:" .. self.chromium.port,
    } } },
  })
  self.path = "/session/" .. session.sessionId
  return self
end

function Page:stop()
  stop(self.driver)
  stop(self.chromium)
end

function Page:command(name, values)
  return send(self.driver.port, "POST", self.path .. "/" .. name, values)
end

--- Loads a page.
function Page:go(url) self:command("url", { url = url }) end

--- Runs a function body in the page; returns its result, null as nil.
function Page:run(script)
  local value = self:command("execute/sync", { script = script,
    args = { 0 } })                    -- cjson encodes {} as an object
  if value ~= json.null then return value end
end

--- Sends a DevTools protocol command.
function Page:devtools(command, params)
  return self:command("goog/cdp/execute", { cmd = command, params = params })
end

--- Resizes the page; emulates a phone if it is narrow.
---@param scheme string "light" or "dark"
function Page:resize(width, height, scheme)
  self:devtools("Emulation.setDeviceMetricsOverride", { width = width,
    height = height, deviceScaleFactor = 1, mobile = width < 600 })
  self:devtools("Emulation.setEmulatedMedia", { features = {
    { name = "prefers-color-scheme", value = scheme },
  } })
end

--- Saves a screenshot to a file.
function Page:picture(path)
  local data = send(self.driver.port, "GET", self.path .. "/screenshot")
  files.write(path, ngx.decode_base64(data))
end

return browser
