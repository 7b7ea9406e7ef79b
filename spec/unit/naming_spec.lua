local naming = require "rlock.naming"

describe("naming.prefix", function()
  it("wraps a name in a hash tag", function()
    assert.equal("redisson_lock__channel:{orders}",
      naming.prefix("redisson_lock__channel", "orders"))
  end)

  it("leaves a name with a hash tag as it is", function()
    assert.equal("queue:{shop}:orders", naming.prefix("queue", "{shop}:orders"))
  end)

  it("looks for a brace anywhere, as Redisson does", function()
    assert.equal("queue:a{b", naming.prefix("queue", "a{b"))
    assert.equal("queue:x{}y", naming.prefix("queue", "x{}y"))
    assert.equal("queue:{a}b}", naming.prefix("queue", "a}b"))
  end)
end)

describe("naming.suffix", function()
  it("wraps a name in a hash tag", function()
    assert.equal("{orders}:write", naming.suffix("orders", "write"))
  end)

  it("leaves a name with a brace as it is", function()
    assert.equal("{shop}:orders:write", naming.suffix("{shop}:orders", "write"))
    assert.equal("a{b:write", naming.suffix("a{b", "write"))
  end)

  it("takes pattern characters literally", function()
    assert.equal("{%d.*}:write", naming.suffix("%d.*", "write"))
  end)
end)

describe("naming.show", function()
  it("quotes a name", function()
    assert.equal([["the \"best\" one"]], naming.show('the "best" one'))
  end)

  it("shortens a long one and leaves out what moves the cursor", function()
    assert.equal('"?[31m?' .. ("x"):rep(55) .. '..."',
      naming.show("\27[31m\n" .. ("x"):rep(100000)))
  end)
end)
