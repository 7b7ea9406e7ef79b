--- The operations of a read/write lock at exact times, on the model of Redis.

local transcript = require "spec.tools.transcript"

local function check(text) transcript.check("readwrite", text) end

describe("a read/write lock", function()
  it("lets readers share it, and keeps writers out", function()
    check [[
      0 read.acquire A 1000 1 -> held
      0 keys -> lock {A=1 mode=read} ttl 1000, holds {A=1000} ttl 1000,
        .. :A:rwlock_timeout:1 1 ttl 1000
      100 read.acquire B 2000 1 -> held
      100 keys -> lock {A=1 B=1 mode=read} ttl 2000, holds {A=1000 B=2100}
        .. ttl 2000, :A:rwlock_timeout:1 1 ttl 900, :B:rwlock_timeout:1 1
        .. ttl 2000
      200 read.acquire C 500 1 -> held
      200 keys -> lock {A=1 B=1 C=1 mode=read} ttl 1900, holds {A=1000
        .. B=2100 C=700} ttl 1900, :A:rwlock_timeout:1 1 ttl 800,
        .. :B:rwlock_timeout:1 1 ttl 1900, :C:rwlock_timeout:1 1 ttl 500
      250 write.acquire D 500 1 -> busy 1850
      300 read.acquire A 1000 2 -> held
      300 keys -> lock {A=2 B=1 C=1 mode=read} ttl 1800, holds {A=1300
        .. B=2100 C=700} ttl 1800, :A:rwlock_timeout:1 1 ttl 700,
        .. :A:rwlock_timeout:2 1 ttl 1000, :B:rwlock_timeout:1 1 ttl 1800,
        .. :C:rwlock_timeout:1 1 ttl 400
      350 read.release A 800 1 publish -> kept
      350 keys -> lock {A=1 B=1 C=1 mode=read} ttl 1750, holds {A=1150
        .. B=2100 C=700} ttl 1750, :A:rwlock_timeout:1 1 ttl 800,
        .. :B:rwlock_timeout:1 1 ttl 1750, :C:rwlock_timeout:1 1 ttl 350
      360 write.acquire A 500 1 -> refused upgrade: this owner reads, and a
        .. writer waits for all readers
      700 read.renew C 500 1 -> lost
      701 read.renew B 100 1 -> held
      701 keys -> lock {A=1 B=1 C=1 mode=read} ttl 1399, holds {A=1150
        .. B=2100 C=700} ttl 1399, :A:rwlock_timeout:1 1 ttl 449,
        .. :B:rwlock_timeout:1 1 ttl 1399
      710 read.release B 0 0 publish -> freed
      710 keys -> lock {A=1 C=1 mode=read} ttl 440, holds {A=1150 C=700} ttl
        .. 1390, :A:rwlock_timeout:1 1 ttl 440
      720 read.release A 0 0 publish -> freed, sent rwlock=0
      720 keys -> none
      730 read.release A 0 0 publish -> lost
      730 write.acquire D 500 1 -> held
    ]]
  end)

  it("frees it with its last reader", function()
    check [[
      0 read.acquire A 1000 1 -> held
      100 read.acquire A 1000 2 -> held
      100 keys -> lock {A=2 mode=read} ttl 1000, holds {A=1100} ttl 1000,
        .. :A:rwlock_timeout:1 1 ttl 900, :A:rwlock_timeout:2 1 ttl 1000
      200 read.release A 1000 0 publish -> freed, sent rwlock=0
      200 keys -> none
      300 write.acquire B 1000 1 -> held
      300 keys -> lock {B:write=1 mode=write} ttl 1000
      400 read.acquire A 1000 1 -> busy 900
      400 read.acquire A 1000 2 -> lost 900
      400 write.acquire A 1000 1 -> busy 900
      500 write.acquire B 500 2 -> held
      500 keys -> lock {B:write=2 mode=write} ttl 800
      500 write.acquire B 2000 3 -> held
      500 keys -> lock {B:write=3 mode=write} ttl 2000
      600 write.release B 700 1 publish -> kept
      600 keys -> lock {B:write=1 mode=write} ttl 700
      600 write.renew B 500 1 -> held
      600 write.renew B 5000 1 -> held
      600 keys -> lock {B:write=1 mode=write} ttl 5000
      600 write.renew A 5000 1 -> lost
      700 write.release A 700 0 publish -> lost
      700 write.release B 700 0 publish -> freed, sent rwlock=1
      700 keys -> none
      700 write.acquire B 700 2 -> lost
    ]]
  end)

  it("lets the writer read, and go on as a reader", function()
    check [[
      0 write.acquire A 1000 1 -> held
      100 read.acquire A 2000 1 -> held
      100 keys -> lock {A=1 A:write=1 mode=write} ttl 2000, holds {A=2100
        .. A:write=1000} ttl 2000, :A:rwlock_timeout:1 1 ttl 2000
      200 write.acquire A 500 2 -> held
      200 keys -> lock {A=1 A:write=2 mode=write} ttl 1900, holds {A=2100
        .. A:write=1000} ttl 1900, :A:rwlock_timeout:1 1 ttl 1900
      300 write.acquire A 5000 2 -> held
      300 keys -> lock {A=1 A:write=2 mode=write} ttl 5000, holds {A=2100
        .. A:write=5300} ttl 5000, :A:rwlock_timeout:1 1 ttl 1800
      400 write.release A 1000 1 publish -> kept
      400 keys -> lock {A=1 A:write=1 mode=write} ttl 1700, holds {A=2100
        .. A:write=1400} ttl 4900, :A:rwlock_timeout:1 1 ttl 1700
      500 write.renew A 3000 1 -> held
      500 keys -> lock {A=1 A:write=1 mode=write} ttl 3000, holds {A=2100
        .. A:write=3500} ttl 3000, :A:rwlock_timeout:1 1 ttl 1600
      600 read.acquire B 1000 1 -> busy 1500
      600 read.peek A -> held 2900 1 [A 1] [mode write]
      700 write.release A 1000 0 publish -> freed, sent rwlock=1
      700 keys -> lock {A=1 mode=read} ttl 1400, holds {A=2100} ttl 2800,
        .. :A:rwlock_timeout:1 1 ttl 1400
      800 read.acquire B 300 1 -> held
      800 keys -> lock {A=1 B=1 mode=read} ttl 1300, holds {A=2100 B=1100}
        .. ttl 1300, :A:rwlock_timeout:1 1 ttl 1300, :B:rwlock_timeout:1 1
        .. ttl 300
      900 read.release A 300 0 publish -> freed, sent rwlock=0
      900 keys -> lock {B=1 mode=read} ttl 200, holds {B=1100} ttl 1200,
        .. :B:rwlock_timeout:1 1 ttl 200
      1050 read.release B 300 0 publish -> freed, sent rwlock=0
      1050 keys -> none
    ]]
  end)

  it("lets the writer stop to read", function()
    check [[
      0 write.acquire A 9000 1 -> held
      100 read.acquire A 2000 1 -> held
      200 read.acquire A 2000 2 -> held
      200 keys -> lock {A=2 A:write=1 mode=write} ttl 8800, holds {A=2200
        .. A:write=9000} ttl 8800, :A:rwlock_timeout:1 1 ttl 1900,
        .. :A:rwlock_timeout:2 1 ttl 2000
      300 read.release A 1000 1 publish -> kept
      300 keys -> lock {A=1 A:write=1 mode=write} ttl 8700, holds {A=1300
        .. A:write=9000} ttl 8700, :A:rwlock_timeout:1 1 ttl 1000
      400 read.release A 0 0 publish -> freed
      400 keys -> lock {A:write=1 mode=write} ttl 8600
      500 read.release A 0 0 publish -> lost
      600 write.release A 0 0 publish -> freed, sent rwlock=1
      600 keys -> none
    ]]
  end)

  it("forgets a read hold of the writer whose lease has ended", function()
    check [[
      0 write.acquire A 9000 1 -> held
      100 read.acquire A 300 1 -> held
      400 read.renew A 500 1 -> lost
      400 write.renew A 9000 1 -> held
      400 keys -> lock {A:write=1 mode=write} ttl 9000
      500 read.acquire A 300 1 -> held
      700 read.acquire B 300 1 -> busy 100
      900 read.acquire B 300 1 -> busy 1
      900 keys -> lock {A:write=1 mode=write} ttl 8500
    ]]
  end)

  it("forgets a write hold of a reader whose lease has ended", function()
    check [[
      0 write.acquire A 300 1 -> held
      100 read.acquire A 900 1 -> held
      299 write.renew A 300 1 -> held
      500 keys -> lock {A=1 A:write=1 mode=write} ttl 500, holds {A=1000
        .. A:write=599} ttl 500, :A:rwlock_timeout:1 1 ttl 500
      600 write.renew A 300 1 -> lost
      600 keys -> lock {A=1 mode=read} ttl 400, holds {A=1000} ttl 400,
        .. :A:rwlock_timeout:1 1 ttl 400
      700 read.acquire B 300 1 -> held
      700 write.release A 300 0 publish -> lost
      700 keys -> lock {A=1 B=1 mode=read} ttl 300, holds {A=1000 B=1000}
        .. ttl 300, :A:rwlock_timeout:1 1 ttl 300, :B:rwlock_timeout:1 1 ttl
        .. 300
    ]]
  end)

  it("lasts as long as its readers, and drops the dead", function()
    check [[
      0 read.acquire A 1000 1 -> held
      10 read.acquire B 100 1 -> held
      20 read.acquire C 110 1 -> held
      30 read.acquire D 120 1 -> held
      40 read.acquire E 130 1 -> held
      50 read.acquire F 140 1 -> held
      60 keys -> lock {A=1 B=1 C=1 D=1 E=1 F=1 mode=read} ttl 940, holds
        .. {A=1000 B=110 C=130 D=150 E=170 F=190} ttl 940,
        .. :A:rwlock_timeout:1 1 ttl 940, :B:rwlock_timeout:1 1 ttl 50,
        .. :C:rwlock_timeout:1 1 ttl 70, :D:rwlock_timeout:1 1 ttl 90,
        .. :E:rwlock_timeout:1 1 ttl 110, :F:rwlock_timeout:1 1 ttl 130
      500 read.acquire G 100 1 -> held
      500 keys -> lock {A=1 F=1 G=1 mode=read} ttl 500, holds {A=1000 F=190
        .. G=600} ttl 500, :A:rwlock_timeout:1 1 ttl 500,
        .. :G:rwlock_timeout:1 1 ttl 100
      510 read.release B 0 0 publish -> lost
      510 read.release F 0 0 publish -> lost
      510 keys -> lock {A=1 G=1 mode=read} ttl 490, holds {A=1000 G=600} ttl
        .. 490, :A:rwlock_timeout:1 1 ttl 490, :G:rwlock_timeout:1 1 ttl 90
      520 read.release A 0 0 publish -> freed
      520 keys -> lock {G=1 mode=read} ttl 80, holds {G=600} ttl 480,
        .. :G:rwlock_timeout:1 1 ttl 80
      530 read.acquire A 1000 1 -> held
      530 read.release G 0 0 publish -> freed
      620 read.release A 500 1 publish -> kept
      620 keys -> lock {A=1 mode=read} ttl 500, holds {A=1120} ttl 910,
        .. :A:rwlock_timeout:1 1 ttl 500
      630 read.release A 1500 1 publish -> kept
      630 keys -> lock {A=1 mode=read} ttl 1500, holds {A=2130} ttl 1500,
        .. :A:rwlock_timeout:1 1 ttl 1500
    ]]
  end)

  it("wakes waiters when it becomes free much sooner", function()
    check [[
      0 read.acquire A 3000 1 -> held
      0 read.acquire B 1999 1 -> held
      10 read.release A 0 0 publish -> freed, sent rwlock=0
      20 read.acquire A 3000 1 -> held
      20 read.acquire B 2021 1 -> held
      30 read.release A 0 0 publish -> freed
      40 read.acquire A 9000 2 -> lost
      40 read.acquire A 9000 1 -> held
      40 read.acquire A 9000 2 -> held
      50 read.release A 8000 1 publish -> kept
      60 read.acquire A 9000 2 -> held
      70 read.release A 7000 1 publish -> kept, sent rwlock=0
      80 read.release B 0 0 publish -> freed
      80 keys -> lock {A=1 mode=read} ttl 6990, holds {A=7070} ttl 8980,
        .. :A:rwlock_timeout:1 1 ttl 6990
    ]]
  end)

  it("does not forget readers of Redisson", function()
    check [[
      0 HSET lock mode read R:1 1 -> 2
      0 SET @:R:1:rwlock_timeout:1 1 PX 3000 -> OK
      0 PEXPIRE lock 3000 -> 1
      100 read.acquire A 5000 1 -> held
      100 keys -> lock {A=1 R:1=1 mode=read} ttl 5000, holds {A=5100} ttl
        .. 5000, :A:rwlock_timeout:1 1 ttl 5000, :R:1:rwlock_timeout:1 1 ttl
        .. 2900
      200 read.release A 0 0 publish -> freed, sent rwlock=0
      200 keys -> lock {R:1=1 mode=read} ttl 2800, :R:1:rwlock_timeout:1 1
        .. ttl 2800
      300 read.acquire A 9000 2 -> lost
      300 read.acquire A 9000 1 -> held
      300 keys -> lock {A=1 R:1=1 mode=read} ttl 9000, holds {A=9300} ttl
        .. 9000, :A:rwlock_timeout:1 1 ttl 9000, :R:1:rwlock_timeout:1 1 ttl
        .. 2700
      400 HSET lock R:2 2 -> 1
      400 SET @:R:2:rwlock_timeout:2 1 PX 4000 -> OK
      500 read.release A 0 0 publish -> freed, sent rwlock=0
      500 keys -> lock {R:1=1 R:2=2 mode=read} ttl 3900,
        .. :R:1:rwlock_timeout:1 1 ttl 2500, :R:2:rwlock_timeout:2 1 ttl
        .. 3900
      600 read.acquire A 9000 1 -> held
      3100 read.release A 0 0 publish -> freed, sent rwlock=0
      3100 keys -> lock {R:2=2 mode=read} ttl 1300, :R:2:rwlock_timeout:2 1
        .. ttl 1300
      3200 read.acquire A 9000 1 -> held
      4400 read.release A 0 0 publish -> freed, sent rwlock=0
      4400 keys -> none
    ]]
  end)

  it("drops readers of Redisson whose leases have ended", function()
    check [[
      0 HSET lock mode 1,R*12 1 -> 13
      0 HSET lock mode read -> 0
      0 PEXPIRE lock 3000 -> 1
      100 read.acquire A 5000 1 -> held
      200 read.release A 0 0 publish -> freed, sent rwlock=0
      200 HLEN lock -> 0
      200 PTTL lock -> -2
      300 read.acquire A 5000 1 -> held
      300 HSET lock Z 2000000000 -> 1
      400 read.release A 0 0 publish -> freed, sent rwlock=0
      400 HLEN lock -> 0
    ]]
  end)

  it("forgets an index that is not of this lock", function()
    check [[
      0 read.acquire A 5000 1 -> held
      100 DEL lock -> 1
      100 keys -> holds {A=5000} ttl 4900, :A:rwlock_timeout:1 1 ttl 4900
      200 read.acquire B 1000 1 -> held
      200 keys -> lock {B=1 mode=read} ttl 1000, holds {B=1200} ttl 1000,
        .. :A:rwlock_timeout:1 1 ttl 4800, :B:rwlock_timeout:1 1 ttl 1000
      300 read.renew A 5000 1 -> lost
      300 write.acquire A 1000 1 -> busy 900
      400 DEL lock -> 1
      400 write.acquire W 1000 1 -> held
      500 read.acquire A 5000 1 -> busy 700
      500 write.acquire W 1000 1 -> held
    ]]
  end)

  it("reasserts what Redisson's watchdog has shortened", function()
    check [[
      0 read.acquire A 5000 1 -> held
      100 PEXPIRE lock 100 -> 1
      100 PEXPIRE @:A:rwlock_timeout:1 100 -> 1
      150 read.renew A 4850 1 reasserts -> held
      150 keys -> lock {A=1 mode=read} ttl 4850, holds {A=5000} ttl 4850,
        .. :A:rwlock_timeout:1 1 ttl 4850
      160 read.renew A 9000 1 reasserts -> held
      160 keys -> lock {A=1 mode=read} ttl 4840, holds {A=5000} ttl 4840,
        .. :A:rwlock_timeout:1 1 ttl 4840
      170 read.renew A 9000 1 -> held
      170 keys -> lock {A=1 mode=read} ttl 9000, holds {A=9170} ttl 9000,
        .. :A:rwlock_timeout:1 1 ttl 9000
      180 DEL rlock_rw_holds:@ -> 1
      190 read.renew A 500 1 reasserts -> held
      190 keys -> lock {A=1 mode=read} ttl 8980, holds {A=690} ttl 8980,
        .. :A:rwlock_timeout:1 1 ttl 500
    ]]
  end)

  it("breaks it for one side", function()
    check [[
      0 read.break_ - publish -> free
      0 read.acquire A 5000 1 -> held
      10 write.break_ - publish -> free
      10 read.break_ 1 publish -> refused a read/write lock has no fencing
        .. tokens
      10 keys -> lock {A=1 mode=read} ttl 4990, holds {A=5000} ttl 4990,
        .. :A:rwlock_timeout:1 1 ttl 4990
      10 read.break_ - publish -> freed, sent rwlock=0
      10 keys -> :A:rwlock_timeout:1 1 ttl 4990
      20 write.acquire A 5000 1 -> held
      30 read.break_ - publish -> free
      30 write.break_ - publish -> freed, sent rwlock=1
      30 keys -> :A:rwlock_timeout:1 1 ttl 4970
      40 write.break_ - publish -> free
    ]]
  end)

  it("shows its holders", function()
    check [[
      0 read.peek A -> free -2 0 [] [mode false]
      0 read.peek A -> free -2 0 [] [mode false]
      0 read.acquire A 5000 1 -> held
      0 read.acquire A 5000 2 -> held
      0 read.acquire B 1000 1 -> held
      10 read.peek A -> held 4990 2 [A 2 B 1] [mode read]
      10 read.peek C -> held 4990 0 [A 2 B 1] [mode read]
      10 write.peek A -> free -2 0 [] [mode read]
      1000 read.peek B -> held 4000 0 [A 2] [mode read]
      5000 read.peek A -> free -2 0 [] [mode false]
      6000 write.acquire A 5000 1 -> held
      6000 read.acquire A 1000 1 -> held
      6000 read.peek A -> held 5000 1 [A 1] [mode write]
      6000 write.peek A -> held 5000 1 [A 1] [mode write]
      6000 write.peek B -> held 5000 0 [A 1] [mode write]
      7000 read.peek A -> free -2 0 [] [mode write]
      7000 write.peek A -> held 4000 1 [A 1] [mode write]
      7000 write.peek mode -> held 4000 0 [A 1] [mode write]
      7000 read.peek A:write -> free -2 0 [] [mode write]
    ]]
  end)

  it("refuses owners with bad names", function()
    check [[
      0 read.acquire mode 5000 1 -> refused an owner of a read/write lock
        .. cannot be called "mode" or end in ":write"
      0 write.acquire A:write 5000 1 -> refused an owner of a read/write
        .. lock cannot be called "mode" or end in ":write"
      0 write.acquire A 5000 1 -> held
      0 read.renew A:write 5000 1 -> lost
      0 read.release A:write 0 0 publish -> lost
      0 write.release mode 0 0 publish -> lost
      0 write.renew mode 0 1 -> lost
    ]]
  end)

  it("lets no one in where the key is something else", function()
    check [[
      0 HSET lock x 1 -> 1
      0 read.acquire A 1000 1 -> busy -1
      0 write.acquire A 1000 1 -> busy -1
      0 read.release A 0 0 publish -> lost
      0 PEXPIRE lock 500 -> 1
      0 write.acquire A 1000 1 -> busy 500
    ]]
  end)

  it("keeps the lease of the others when one is prolonged", function()
    check [[
      0 read.acquire A 1000 1 -> held
      0 read.acquire A 1000 2 -> held
      0 read.acquire B 9000 1 -> held
      100 read.release A 3000 1 publish -> kept
      100 keys -> lock {A=1 B=1 mode=read} ttl 8900, holds {A=3100 B=9000}
        .. ttl 8900, :A:rwlock_timeout:1 1 ttl 3000, :B:rwlock_timeout:1 1
        .. ttl 8900
      200 read.acquire A 2900 2 -> held
      200 read.release A 2900 1 publish -> kept
      200 keys -> lock {A=1 B=1 mode=read} ttl 8800, holds {A=3100 B=9000}
        .. ttl 8800, :A:rwlock_timeout:1 1 ttl 2900, :B:rwlock_timeout:1 1
        .. ttl 8800
      300 read.renew A 100 1 -> held
      300 read.renew B 8700 1 -> held
      300 keys -> lock {A=1 B=1 mode=read} ttl 8700, holds {A=3100 B=9000}
        .. ttl 8700, :A:rwlock_timeout:1 1 ttl 2800, :B:rwlock_timeout:1 1
        .. ttl 8700
    ]]
  end)

  it("finds the leases of Redisson's readers by their hold keys", function()
    check [[
      0 HSET lock mode read R 3 S 2.5 T 3000000000 U x -> 5
      0 PEXPIRE lock 9000 -> 1
      0 SET @:R:rwlock_timeout:1 1 PX 4000 -> OK
      0 SET @:R:rwlock_timeout:2 1 PX 5000 -> OK
      0 SET @:R:rwlock_timeout:3 1 PX 3000 -> OK
      0 SET @:S:rwlock_timeout:1 1 PX 6000 -> OK
      0 SET @:T:rwlock_timeout:1 1 PX 200 -> OK
      100 read.acquire A 20000 1 -> held
      110 read.release A 0 0 publish -> freed
      110 keys -> lock {R=3 S=2.5 T=3000000000 U=x mode=read} ttl 19990,
        .. :R:rwlock_timeout:1 1 ttl 3890, :R:rwlock_timeout:2 1 ttl 4890,
        .. :R:rwlock_timeout:3 1 ttl 2890, :S:rwlock_timeout:1 1 ttl 5890,
        .. :T:rwlock_timeout:1 1 ttl 90
      200 HDEL lock U -> 1
      200 read.acquire A 20000 1 -> held
      210 read.release A 0 0 publish -> freed, sent rwlock=0
      210 keys -> lock {R=3 S=2.5 mode=read} ttl 5790, :R:rwlock_timeout:1 1
        .. ttl 3790, :R:rwlock_timeout:2 1 ttl 4790, :R:rwlock_timeout:3 1
        .. ttl 2790, :S:rwlock_timeout:1 1 ttl 5790
      5999 read.acquire A 20000 1 -> held
      5999 read.release A 0 0 publish -> freed, sent rwlock=0
      5999 keys -> lock {S=2.5 mode=read} ttl 1, :S:rwlock_timeout:1 1 ttl 1
      6000 read.acquire A 20000 1 -> held
      6000 read.release A 0 0 publish -> freed, sent rwlock=0
      6000 keys -> none
    ]]
  end)

  it("leaves Redisson's expiry while a writer has it", function()
    check [[
      0 write.acquire A 9000 1 -> held
      10 read.acquire A 20000 1 -> held
      20 HSET lock R 1 -> 1
      30 read.release A 0 0 publish -> freed
      30 keys -> lock {A:write=1 R=1 mode=write} ttl 19980
      40 read.acquire A 20000 1 -> held
      50 DEL rlock_rw_holds:@ -> 1
      60 read.renew A 20000 1 -> held
      60 keys -> lock {A=1 A:write=1 R=1 mode=write} ttl 20000, holds
        .. {A=20060} ttl 20000, :A:rwlock_timeout:1 1 ttl 20000
      70 read.release A 0 0 publish -> freed
      70 keys -> lock {A:write=1 R=1 mode=write} ttl 19990
      80 write.release A 0 0 publish -> freed, sent rwlock=1
    ]]
  end)

  it("forgets dead holds of the writer in any order", function()
    check [[
      0 write.acquire A 9000 1 -> held
      10 read.acquire A 100 1 -> held
      50 write.acquire A 9000 2 -> held
      110 write.acquire B 100 1 -> busy 8940
      110 read.acquire B 100 1 -> busy 1
      110 keys -> lock {A:write=2 mode=write} ttl 8940
      120 write.release A 5000 1 publish -> kept
      120 keys -> lock {A:write=1 mode=write} ttl 5000
      130 read.acquire A 4990 1 -> held
      140 write.release A 4980 1 publish -> kept
      150 write.release A 3000 1 publish -> kept
      150 keys -> lock {A=1 A:write=1 mode=write} ttl 4970, holds {A=5120
        .. A:write=3150} ttl 4970, :A:rwlock_timeout:1 1 ttl 4970
      160 read.release A 0 0 publish -> freed, sent rwlock=1
      170 write.release A 0 0 publish -> freed, sent rwlock=1
    ]]
  end)

  it("ends with the last of many holds", function()
    check [[
      0 read.acquire A 1000 1 -> held
      0 read.acquire A 1000 2 -> held
      0 read.acquire A 1000 3 -> held
      0 HSET lock A x -> 0
      10 read.release A 1000 0 publish -> freed, sent rwlock=0
      10 keys -> :A:rwlock_timeout:2 1 ttl 990, :A:rwlock_timeout:3 1 ttl
        .. 990
      20 read.acquire A 100 1 -> held
      120 read.release A 1000 0 publish -> lost
      120 keys -> :A:rwlock_timeout:2 1 ttl 880, :A:rwlock_timeout:3 1 ttl
        .. 880
    ]]
  end)

  it("is free for a writer when only dead readers are left", function()
    check [[
      0 read.acquire D1 100 1 -> held
      0 read.acquire D2 100 1 -> held
      0 read.acquire D3 100 1 -> held
      0 read.acquire D4 100 1 -> held
      0 read.acquire D5 100 1 -> held
      0 read.acquire D6 100 1 -> held
      0 read.acquire D7 100 1 -> held
      0 read.acquire D8 100 1 -> held
      0 read.acquire D9 100 1 -> held
      0 read.acquire D10 100 1 -> held
      0 read.acquire D11 100 1 -> held
      0 read.acquire D12 100 1 -> held
      10 read.acquire A 9000 1 -> held
      200 write.acquire W 1000 1 -> busy 8810
      210 read.release A 0 0 publish -> freed, sent rwlock=0
      220 write.acquire W 1000 1 -> held
      220 keys -> lock {W:write=1 mode=write} ttl 1000
    ]]
  end)

  it("lasts without its index", function()
    check [[
      0 read.acquire A 9000 1 -> held
      0 read.acquire B 3000 1 -> held
      10 DEL rlock_rw_holds:@ -> 1
      20 write.acquire W 1000 1 -> busy 8980
      30 read.release A 0 0 publish -> freed
      30 keys -> lock {B=1 mode=read} ttl 2970, :B:rwlock_timeout:1 1 ttl 2970
      40 read.renew B 4000 1 -> held
      40 keys -> lock {B=1 mode=read} ttl 4000, holds {B=4040} ttl 4000,
        .. :B:rwlock_timeout:1 1 ttl 4000
      50 read.release B 0 0 publish -> freed, sent rwlock=0
      60 write.acquire A 9000 1 -> held
      60 read.acquire A 3000 1 -> held
      70 DEL rlock_rw_holds:@ -> 1
      80 read.acquire B 1000 1 -> busy 8980
      90 write.release A 0 0 publish -> freed, sent rwlock=1
      90 keys -> lock {A=1 mode=read} ttl 2970, :A:rwlock_timeout:1 1 ttl 2970
    ]]
  end)

  it("gets an expiry if it has none", function()
    check [[
      0 HSET lock mode read R 1 -> 2
      0 write.acquire A 1000 1 -> busy -1
      0 read.acquire A 9000 1 -> held
      0 keys -> lock {A=1 R=1 mode=read} ttl 9000, holds {A=9000} ttl 9000,
        .. :A:rwlock_timeout:1 1 ttl 9000
    ]]
  end)

  it("restores a hold key that is lost", function()
    check [[
      0 read.acquire A 5000 1 -> held
      10 DEL @:A:rwlock_timeout:1 -> 1
      20 read.renew A 5000 1 -> held
      20 keys -> lock {A=1 mode=read} ttl 5000, holds {A=5020} ttl 5000,
        .. :A:rwlock_timeout:1 1 ttl 5000
    ]]
  end)
end)
