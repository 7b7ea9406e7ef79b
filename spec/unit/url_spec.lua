local address = require "rlockctl.cli.address"
local url = require "rlock.redis.url"

local function parsed(text)
  local result, code, detail = url.parse(text)
  assert.is_table(result, detail)
  assert.is_nil(code)
  return result
end

local function refused(text)
  local result, code, detail = url.parse(text)
  assert.is_nil(result)
  assert.equal("usage", code)
  return detail
end

describe("url.parse", function()
  it("reads a host", function()
    assert.same({ host = "db1", port = 6379, db = 0, tls = false },
      parsed("redis://db1"))
    assert.equal(65535, parsed("redis://db1:65535").port)
    assert.same({ host = "db1", port = 7000, db = 0, tls = false },
      parsed("redis://db1:7000/"))
  end)

  it("reads everything at once", function()
    assert.same({
      host = "db1.example.org", port = 7000, db = 3, tls = true,
      username = "app", password = "secret",
    }, parsed("rediss://app:secret@db1.example.org:7000/3"))
  end)

  it("reads numeric addresses", function()
    assert.equal("127.0.0.1", parsed("redis://127.0.0.1:1/2").host)
    local six = parsed("redis://[fe80::1]:7000/2")
    assert.same({ "fe80::1", 7000, 2 }, { six.host, six.port, six.db })
    assert.equal("::1", parsed("redis://[::1]").host)
  end)

  it("reads a password without a user", function()
    local result = parsed("redis://:secret@h")
    assert.equal("secret", result.password)
    assert.is_nil(result.username)
  end)

  it("decodes percent signs", function()
    local result = parsed("redis://a%20b:p%40%2fs%3A@h")
    assert.equal("a b", result.username)
    assert.equal("p@/s:", result.password)
    assert.equal("/tmp/a b", parsed("unix:///tmp/a%20b").path)
  end)

  it("accepts colons and at signs in a password", function()
    assert.equal("a:b@c", parsed("redis://:a:b@c@h").password)
  end)

  it("reads a socket", function()
    assert.same({ path = "/run/redis.sock", db = 0, tls = false },
      parsed("unix:///run/redis.sock"))
    assert.same({
      path = "/run/redis.sock", db = 5, tls = false, username = "u",
      password = "p",
    }, parsed("unix://u:p@/run/redis.sock?db=5"))
  end)

  it("reads the local server", function()
    assert.is_true(parsed("local:").is_local)
  end)

  it("takes the scheme in any case", function()
    assert.is_true(parsed("REDISS://h").tls)
  end)

  it("reads Sentinels and the name of their master", function()
    assert.same({
      sentinels = { { host = "s1", port = 26379 } }, master = "mymaster",
      db = 0, tls = false,
    }, parsed("redis+sentinel://s1/mymaster"))
    assert.same({
      sentinels = { { host = "s1", port = 1 }, { host = "::1", port = 26379 },
        { host = "10.0.0.1", port = 3 } },
      master = "my master", db = 2, tls = true, username = "app",
      password = "a,b@c",
    }, parsed("rediss+sentinel://app:a,b@c@s1:1,[::1],10.0.0.1:3/"
      .. "my%20master/2"))
  end)

  for _, case in ipairs {
    { "redis+sentinel://s1", "the master's name is missing" },
    { "redis+sentinel://s1/", "the master's name is missing" },
    { "redis+sentinel://s1,/m", "the host is missing" },
    { "redis+sentinel:///m", "the host is missing" },
    { "redis+sentinel://s1:x,s2/m", "the port must be" },
    { "redis+sentinel://s1/m/x", "the database must be a number" },
    { "redis+sentinel://s1/m?db=1", "a %?query is not allowed" },
    { "redis+sentinel://:secret@s1/%zz", "the master has a %%" },
    { "redis+cluster+x://h", "must begin with redis://" },
  } do
    it("refuses " .. case[1], function()
      local detail = refused(case[1])
      assert.matches(case[2], detail)
      assert.not_matches("secret", detail)
    end)
  end

  for _, case in ipairs {
    { "", "must begin with redis://" },
    { "127.0.0.1:6379", "; did you mean redis://127.0.0.1:6379%?$" },
    { "[::1]", "; did you mean redis://%[::1%]%?$" },
    { "/run/redis.sock", "; did you mean unix:///run/redis.sock%?$" },
    { ":secret@h", "or be local:$" },
    { "h:port", "or be local:$" },
    { "http://h", "must begin with redis://" },
    { "redis:h", "must begin with redis://" },
    { "locale:", "must begin with redis://" },
    { "redis://", "host is missing$" },
    { "redis://:6379", "host is missing$" },
    { "redis://:p/w@h", "host is missing %(is there an unencoded /" },
    { "redis://:p@/3", "host is missing" },
    { "redis://[::1", "host is missing" },
    { "redis://[::1]x", "host is malformed" },
    { "redis://h:", "port must be a number" },
    { "redis://h:0", "port must be a number" },
    { "redis://h:65536", "port must be a number" },
    { "redis://h:1x", "port must be a number" },
    { "redis://h/x", "database must be a number" },
    { "redis://h/-1", "database must be a number" },
    { "redis://h/1/2", "database must be a number" },
    { "redis://h/1?db=2", "a %?query is not allowed" },
    { "redis://h%zz", "is not followed by two hex digits" },
    { "redis://h%00", "has a control character" },
    { "redis://a\nb", "has a control character" },
    { "unix://run/redis.sock", "must be absolute" },
    { "unix:///", "must be absolute" },
    { "unix:///p?db=x", "database must be a number" },
    { "unix:///p?timeout=3", "only %?db=n" },
  } do
    it(string.format("refuses %q", case[1]), function()
      local detail = refused(case[1])
      assert.matches(case[2], detail)
      assert.matches("^bad url: [^\n]*$", detail)
    end)
  end

  it("never shows a password in a fault", function()
    for _, text in ipairs {
      "redis://u:hunter2@", "redis://u:hunter2@h:x", "redis://u:hunter2@h/x",
      "redis://u:hunter2%zz@h", "redis://u:hunter2/x@h", "hunter2@h",
      "redis://u:hunter2?x@h", "u:hunter2@h", "unix://u:hunter2@x",
      "redis://u:6379/hunter2@h", "hunter2://h", "redis://hunter2:x",
      "unix://u:p@/s?db=hunter2", "unix://u:p@/s?hunter2",
    } do
      assert.has_no.matches("hunter2", refused(text), text)
    end
  end)

  it("requires a string", function()
    assert.has_error(function() url.parse(nil) end, "bad url: must be a string")
  end)
end)

describe("an address without its password", function()
  for _, text in ipairs {
    "redis://db1:6379/0", "rediss://db1:7000/3", "redis://[fe80::1]:7000/2",
    "unix:///run/redis.sock", "unix:///run/a%20b.sock?db=5", "local:",
    "redis+sentinel://s1:26379,[::1]:2/my%20master/0",
    "rediss+sentinel://s1:1/m/3", "redis+cluster://s1:1,s2:2",
    "zk://h1:2181,[::1]:2/app/x", "zks://h:2181",
  } do
    it("gives back " .. text, function()
      assert.equal(text, address.show(text))
    end)
  end

  it("leaves out the password", function()
    assert.equal("redis://u%40x@h:6379/0",
      address.show "redis://u%40x:hunter2@h")
    assert.equal("unix://u@/s", address.show "unix://u:hunter2@/s")
    assert.equal("redis+sentinel://u@s1:26379/m/0",
      address.show "redis+sentinel://u:hunter2@s1/m")
  end)

  it("leaves out that of ZooKeeper", function()
    assert.equal("zk://me@h:2181/app", address.show "zk://me:hunter2@h/app")
  end)

  it("leaves out a lone user, which may be a password", function()
    assert.equal("redis://h:6379/0", address.show "redis://hunter2@h")
  end)
end)

describe("an address that a server names", function()
  it("is a host and a port", function()
    for _, case in ipairs {
      { "h", 1 }, { "::1", 65535 }, { "10.0.0.1", "6379" },
      { ("h"):rep(255), 7 },
    } do
      assert.same({ host = case[1], port = tonumber(case[2]) },
        url.address(case[1], case[2]))
    end
  end)

  it("is none with a bad host or port", function()
    for _, host in ipairs { false, 5, {}, "", "a\0b", "a\nb", "\27[2J", "\127",
        ("h"):rep(256) } do
      assert.is_nil(url.address(host, 6379))
    end
    assert.is_nil(url.address(nil, nil))
    for _, port in ipairs { false, {}, 0, -5, 65536, 2^40, 6379.5, 1 / 0, 0 / 0,
        "", "-5", "0", "99999", "99999999", "6379.5", "1e999", "0x10", " 1",
        "1e3", "inf", "nan" } do
      assert.is_nil(url.address("h", port))
    end
  end)

  it("in a URL has a host of 255 bytes at most", function()
    assert.is_truthy(url.parse("redis://" .. ("h"):rep(255)))
    assert.matches("the host is too long",
      select(3, url.parse("redis://" .. ("h"):rep(256))))
  end)
end)
