local identity = require "rlock.util.identity"

local ID = "0b5e7b3c-2a91-4a3e-9f57-0d6f0c6c1f00"

describe("identity.encode", function()
  it("makes one printable word", function()
    assert.equal("rlock," .. ID .. ",web3,412,invoice.lua,billing",
      identity.encode { id = ID, host = "web3", pid = 412,
        program = "invoice.lua", name = "billing" })
    assert.equal("rlock,x,,,,", identity.encode { id = "x" })
    local all = {}
    for byte = 0, 255 do all[#all + 1] = string.char(byte) end
    for i = 1, 256, 32 do
      local part = table.concat(all, "", i, i + 31)
      local name = identity.encode { id = ID, program = part }
      assert.is_nil(name:find "[^!-~]")
      assert.equal(part, identity.decode(name).program)
    end
  end)

  it("takes no more than 64 bytes of each", function()
    local name = identity.encode { id = ID, host = (","):rep(99) }
    assert.equal((","):rep(64), identity.decode(name).host)
  end)
end)

describe("identity.client_of", function()
  it("knows the client of an owner and of a permit", function()
    assert.equal(ID, identity.client_of(ID .. ":7"))
    assert.equal("0b5e7b3c2a914a3e", identity.short(ID))
    assert.equal(identity.short(ID),
      identity.client_of("0b5e7b3c2a914a3e0123456789abcdef"))
    for _, owner in ipairs { "", "me", ID, ("x"):rep(32), ("a"):rep(31) } do
      assert.is_nil(identity.client_of(owner))
    end
    assert.equal("\0\255z", identity.bytes "00ff7a")
  end)
end)

describe("identity.decode", function()
  it("decodes what encode returns", function()
    for _, who in ipairs {
      { id = ID, host = "web3", pid = 412, program = "a b%41", name = "x,y" },
      { id = ID, pid = 1 }, { id = ID, name = "\27[31m\n" },
      { id = ID, renews = true },
    } do
      assert.same(who, identity.decode(identity.encode(who)))
    end
  end)

  it("returns nil for other names", function()
    for _, name in ipairs { "", "rlock", "billing", "rlock,", "rlock,,a,1,b,c",
        "rlock,x,a,one,b,c", "rlock,x,a,1,b,c,d", "rlock,x,a,1,b,renews",
        "rlock,x,a,1,b,c,renews,renews", "Xrlock,x,a,1,b,c" } do
      assert.is_nil(identity.decode(name), name)
    end
  end)
end)

describe("identity.plain", function()
  it("is the name alone, or rlock", function()
    assert.equal("rlock", identity.plain())
    assert.equal("a.b-c_d:e@f/g", identity.plain "a.b-c_d:e@f/g")
    assert.equal("a%20b%0A", identity.plain "a b\n")
  end)
end)
