--- The page of the examples for nginx, in a real browser: holders and waiters
--- appear and disappear while it is open.
---
---  RLOCK_PICTURES=folder     saves screenshots there

local browser = require "spec.tools.browser"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local SECONDS = 60
local pictures = os.getenv("RLOCK_PICTURES")

local NOTHING = "free: nobody / nobody"

-- "held: Anna prints / Bert, Carl": the holders and waiters of a lock.
local READ = [[
  const lock = document.getElementById("lock-%s");
  const names = (list) => [...lock.querySelectorAll(list + " li")]
    .map((row) => row.innerText.replace(/\s*lease.*/, "").replace(/\s+/g, " ")
      .trim()).join(", ");
  return lock && lock.querySelector(".state").textContent + ": "
    + names(".holders") + " / " + names(".waiters");]]

if not browser.is_here() then
  describe("the page of the examples", function()
    pending("chromium and chromedriver are missing: spec/tools/deps page")
  end)
  return
end

describe("the page of the examples", function()
  local server, web, page, url

  setup(function()
    server = redis.start()
    web = nginx.start {
      conf = "examples/openresty/nginx.conf", env = { RLOCK_URL = server.url },
    }
    page = browser.start()
    url = ("http://127.0.0.1:%d/"):format(web.port)
  end)

  teardown(function()
    page:stop()
    web:stop()
    server:stop()
  end)

  before_each(function() page:go(url) end)

  local function shows(lock, wanted)
    local seen
    local ok = pcall(eventually, function()
      seen = page:run(READ:format(lock))
      return seen == wanted
    end, SECONDS)
    if not ok then assert.equal(wanted, seen) end
  end

  local function says(id, text)
    eventually(function()
      return page:run(("return document.getElementById('%s').innerText")
        :format(id)):find(text, 1, true)
    end, SECONDS, text)
  end

  -- Requests a lock for a minute; close the socket to release it.
  local function ask(what, who)
    return web:send(("/hold?what=%s&who=%s&seconds=60"):format(what, who),
      "POST")
  end

  it("shows who holds and who waits, in order, as it changes", function()
    shows("printer", NOTHING)
    local anna = ask("print", "Anna")
    shows("printer", "held: Anna prints / nobody")
    local bert = ask("print", "Bert")
    shows("printer", "held: Anna prints / Bert")
    local carl = ask("print", "Carl")
    shows("printer", "held: Anna prints / Bert, Carl")
    anna:close()
    shows("printer", "held: Bert prints / Carl")
    bert:close()
    shows("printer", "held: Carl prints / nobody")
    carl:close()
    shows("printer", NOTHING)
    says("log", "Bert waits for printer")
    says("log", "Bert got printer")
    says("log", "Carl gave printer back")
  end)

  it("shows readers, who share, and writers, who do not", function()
    local anna = ask("read", "Anna")
    shows("config", "held: Anna reads / nobody")
    local bert = ask("read", "Bert")
    shows("config", "held: Anna reads, Bert reads / nobody")
    local carl = ask("write", "Carl")
    shows("config", "held: Anna reads, Bert reads / Carl to write")
    local dora = ask("read", "Dora")
    shows("config",
      "held: Anna reads, Bert reads / Carl to write, Dora to read")
    anna:close()
    bert:close()
    shows("config", "held: Carl writes / Dora to read")
    carl:close()
    shows("config", "held: Dora reads / nobody")
    dora:close()
    shows("config", NOTHING)
  end)

  it("asks for a lock by its form; who goes away leaves the line, or gives it "
      .. "back", function()
    page:run([[
      const form = document.getElementById("ask");
      form.elements.who.value = "<b>Eve</b>";
      form.elements.seconds.value = 60;
      form.requestSubmit();]])
    shows("printer", "held: <b>Eve</b> prints / nobody")
    local waiter = ask("print", "Finn")
    shows("printer", "held: <b>Eve</b> prints / Finn")
    waiter:close()
    shows("printer", "held: <b>Eve</b> prints / nobody")
    says("log", "Finn left the line for printer")
    page:go(url)
    shows("printer", NOTHING)
  end)

  it("says when it shows nothing new, and recovers", function()
    says("link", "live")
    server:kill()
    says("link", "not live: connect")
    server:restart()
    eventually(function()
      return page:run("return document.getElementById('link').innerText")
        == "live"
    end, SECONDS, "live again")
  end)

  it("fits on a desktop and on a phone, by day and by night, and loads nothing "
      .. "from elsewhere", function()
    local backs = {}
    local asked = { ask("print", "Anna"), ask("read", "Bert") }
    shows("printer", "held: Anna prints / nobody")
    shows("config", "held: Bert reads / nobody")
    asked[3], asked[4] = ask("print", "Carl"), ask("write", "Emil")
    shows("printer", "held: Anna prints / Carl")
    shows("config", "held: Bert reads / Emil to write")
    asked[5], asked[6] = ask("print", "Dora"), ask("read", "Finn")
    for name, size in pairs { desktop = { 1280, 800 }, phone = { 390, 844 } } do
      for _, scheme in ipairs { "light", "dark" } do
        page:resize(size[1], size[2], scheme)
        shows("printer", "held: Anna prints / Carl, Dora")
        shows("config", "held: Bert reads / Emil to write, Finn to read")
        assert.equal(size[1],
          page:run("return document.documentElement.scrollWidth"))
        backs[page:run("return getComputedStyle(document.body).background")] = 1
        if pictures then
          page:picture(("%s/%s-%s.png"):format(pictures, name, scheme))
        end
      end
    end
    for _, socket in ipairs(asked) do socket:close() end
    assert.truthy(next(backs, (next(backs))), "two colours of background")
    assert.is_true(page:run([[
      return performance.getEntriesByType("resource").every(
        (entry) => entry.name.startsWith(location.origin));]]))
  end)
end)
