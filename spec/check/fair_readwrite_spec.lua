--- The operations of a fair read/write lock at exact times, on the model of
--- Redis.

local transcript = require "spec.tools.transcript"

local function check(text) transcript.check("fair_readwrite", text) end

describe("a fair read/write lock", function()
  it("refreshes several waiters, and names those that can enter", function()
    check [[
      0 write.acquire A 1000 1 1 publish -> held
      100 write.acquire B 2000 1 1 publish -> busy 900
      110 read.acquire C 2000 1 1 publish -> busy 890
      120 read.acquire D 2000 1 1 publish -> busy 880
      130 write.acquire E 2000 1 1 publish -> busy 870
      140 read.acquire F 2000 1 1 publish -> busy 860
      500 write.refresh publish B E X -> busy 500 X
      500 keys -> frw {w:A=1000} ttl 500, queue {r:C=2 r:D=3 r:F=5 w:B=1
        .. w:E=4} ttl 59640, signs {=500:100 r:C=110:2 r:D=120:3 r:F=140:5
        .. w:B=500:1 w:E=500:4} ttl 3000, writers {w:B=1 w:E=4} ttl 59630
      500 read.refresh publish C D F -> busy 500
      900 read.refresh publish C D F -> busy 100
      1000 write.refresh publish E -> busy 700, sent wake:w:B=0
      1010 read.refresh publish C D F -> busy 690, sent wake:w:B=0
      1020 write.refresh publish B E -> busy 1200 B
      1030 write.acquire B 500 1 1 publish -> held
      1031 write.release B 500 0 publish -> freed, sent wake:r:C=0 wake:r:D=0
      1400 write.refresh publish E -> busy 810, sent wake:r:C=0 wake:r:D=0
      1401 read.refresh publish F D C -> busy 1199 D C
      1410 read.acquire C 900 1 1 publish -> held
      1420 read.refresh publish D F -> busy 1180 D
      1421 write.refresh publish E -> busy 889
      1421 keys -> frw {r:C=2310} ttl 889, queue {r:D=3 r:F=5 w:E=4} ttl
        .. 58719, signs {=1421:100 r:D=1420:3 r:F=1420:5 w:E=1421:4} ttl
        .. 3000, writers {w:E=4} ttl 58709
      2700 read.refresh publish F -> busy 1200, sent wake:r:D=0 wake:w:E=0
        .. wake:r:F=0
      2700 keys -> queue {r:D=3 r:F=5 w:E=4} ttl 57440, signs {=2700:2700
        .. r:D=1420:3 r:F=2700:5 w:E=1421:4} ttl 3000, writers {w:E=4} ttl
        .. 57430
      2720 read.refresh publish G -> busy 1180 G, sent wake:r:D=0 wake:w:E=0
        .. wake:r:F=0
      2800 keys -> queue {r:D=3 r:F=5 w:E=4} ttl 57340, signs {=2700:2700
        .. r:D=1420:3 r:F=2700:5 w:E=1421:4} ttl 2900, writers {w:E=4} ttl
        .. 57330
    ]]
  end)

  it("lets readers share it, and queues writers", function()
    check [[
      0 read.acquire A 1000 1 1 publish -> held
      0 keys -> frw {r:A=1000} ttl 1000
      100 read.acquire B 2000 1 1 publish -> held
      100 keys -> frw {r:A=1000 r:B=2100} ttl 2000
      200 write.acquire W 2000 1 1 publish -> busy 1900
      200 keys -> frw {r:A=1000 r:B=2100} ttl 1900, queue {w:W=1} ttl 60000,
        .. signs {=200:200 w:W=200:1} ttl 3000, writers {w:W=1} ttl 60000
      300 read.acquire C 2000 1 1 publish -> busy 1100
      300 keys -> frw {r:A=1000 r:B=2100} ttl 1800, queue {r:C=2 w:W=1} ttl
        .. 60000, signs {=300:200 r:C=300:2 w:W=200:1} ttl 3000, writers
        .. {w:W=1} ttl 59900
      310 read.acquire A 500 2 1 publish -> held
      310 keys -> frw {r:A=1000 r:B=2100} ttl 1790, counts {r:A=2} ttl 1790,
        .. queue {r:C=2 w:W=1} ttl 59990, signs {=300:200 r:C=300:2
        .. w:W=200:1} ttl 2990, writers {w:W=1} ttl 59890
      320 read.acquire A 5000 3 1 publish -> held
      320 keys -> frw {r:A=5320 r:B=2100} ttl 5000, counts {r:A=3} ttl 5000,
        .. queue {r:C=2 w:W=1} ttl 59980, signs {=300:200 r:C=300:2
        .. w:W=200:1} ttl 2980, writers {w:W=1} ttl 59880
      330 read.release A 700 1 publish -> kept
      330 keys -> frw {r:A=1030 r:B=2100} ttl 1770, queue {r:C=2 w:W=1} ttl
        .. 59970, signs {=300:200 r:C=300:2 w:W=200:1} ttl 2970, writers
        .. {w:W=1} ttl 59870
      340 read.renew A 300 1 -> held
      341 read.renew A 900 2 -> held
      341 keys -> frw {r:A=1241 r:B=2100} ttl 1759, counts {r:A=2} ttl 1759,
        .. queue {r:C=2 w:W=1} ttl 59959, signs {=300:200 r:C=300:2
        .. w:W=200:1} ttl 2959, writers {w:W=1} ttl 59859
      350 read.acquire D 1000 1 0 publish -> busy 1050
      360 write.acquire A 1000 1 1 publish -> refused upgrade: this owner
        .. reads, and a writer waits for all readers
      400 read.release A 700 0 publish -> freed
      400 read.release A 700 0 publish -> lost
      500 read.release B 700 0 publish -> freed, sent wake:w:W=0
      500 keys -> queue {r:C=2 w:W=1} ttl 59800, signs {=300:200 r:C=300:2
        .. w:W=200:1} ttl 2800, writers {w:W=1} ttl 59700
      510 read.acquire C 2000 1 1 publish -> busy 890
      520 write.acquire W 2000 1 1 publish -> held
      520 keys -> frw {w:W=2520} ttl 2000, queue {r:C=2} ttl 59780, signs
        .. {=510:200 r:C=510:2} ttl 2990
      530 read.acquire C 2000 1 1 publish -> busy 1990
      600 write.release W 2000 0 publish -> freed, sent wake:r:C=0
      600 keys -> queue {r:C=2} ttl 59700, signs {=530:200 r:C=530:2} ttl
        .. 2930
      610 read.acquire C 2000 1 1 publish -> held
      610 keys -> frw {r:C=2610} ttl 2000, signs {=530:200} ttl 2920
    ]]
  end)

  it("lets readers in between two writers", function()
    check [[
      0 write.acquire W 1000 1 1 publish -> held
      10 read.acquire A 1000 1 1 publish -> busy 990
      20 read.acquire B 1000 1 1 publish -> busy 980
      30 write.acquire X 1000 1 1 publish -> busy 970
      40 read.acquire C 1000 1 1 publish -> busy 960
      50 write.acquire Y 1000 1 1 publish -> busy 950
      60 keys -> frw {w:W=1000} ttl 940, queue {r:A=1 r:B=2 r:C=4 w:X=3
        .. w:Y=5} ttl 59990, signs {=50:10 r:A=10:1 r:B=20:2 r:C=40:4
        .. w:X=30:3 w:Y=50:5} ttl 2990, writers {w:X=3 w:Y=5} ttl 59990
      100 write.release W 1000 0 publish -> freed, sent wake:r:A=0
        .. wake:r:B=0
      110 read.acquire C 1000 1 1 publish -> busy 1120
      120 read.acquire B 1000 1 1 publish -> held
      130 read.acquire A 1000 1 1 publish -> held
      130 keys -> frw {r:A=1130 r:B=1120} ttl 1000, queue {r:C=4 w:X=3
        .. w:Y=5} ttl 59920, signs {=110:10 r:C=110:4 w:X=30:3 w:Y=50:5} ttl
        .. 2980, writers {w:X=3 w:Y=5} ttl 59920
      140 write.acquire X 1000 1 1 publish -> busy 990
      150 read.release A 1000 0 publish -> freed
      160 read.release B 1000 0 publish -> freed, sent wake:w:X=0
      170 write.acquire X 1000 1 1 spublish -> held
      180 write.release X 1000 0 both -> freed, sent wake:r:C=0 wake:r:C=0
      190 read.acquire C 1000 1 1 publish -> held
      200 write.acquire Y 1000 1 1 publish -> busy 990
      210 read.release C 1000 0 publish -> freed, sent wake:w:Y=0
      220 write.acquire Y 1000 1 1 publish -> held
      220 keys -> frw {w:Y=1220} ttl 1000, signs {=200:10} ttl 2980
    ]]
  end)

  it("lets the writer enter again, read, and go on as a reader", function()
    check [[
      0 write.acquire W 1000 1 1 publish -> held
      100 write.acquire W 500 2 1 publish -> held
      100 keys -> frw {w:W=1000} ttl 900, counts {w:W=2} ttl 900
      200 write.acquire W 2000 3 1 publish -> held
      200 keys -> frw {w:W=2200} ttl 2000, counts {w:W=3} ttl 2000
      300 write.release W 700 1 publish -> kept
      300 keys -> frw {w:W=1000} ttl 700
      310 write.renew W 600 1 -> held
      311 write.renew W 800 2 -> held
      311 keys -> frw {w:W=1111} ttl 800, counts {w:W=2} ttl 800
      400 read.acquire W 5000 1 1 publish -> held
      400 keys -> frw {r:W=5400 w:W=1111} ttl 5000, counts {w:W=2} ttl 711
      410 read.acquire A 1000 1 1 publish -> busy 701
      420 write.acquire X 1000 1 1 publish -> busy 4980
      430 write.release W 700 0 publish -> freed, sent wake:r:A=0
      430 keys -> frw {r:W=5400} ttl 4970, queue {r:A=1 w:X=2} ttl 59990,
        .. signs {=420:410 r:A=410:1 w:X=420:2} ttl 2990, writers {w:X=2}
        .. ttl 59990
      440 read.acquire A 1000 1 1 publish -> held
      450 read.release W 700 0 publish -> freed
      450 keys -> frw {r:A=1440} ttl 990, queue {w:X=2} ttl 59970, signs
        .. {=420:410 w:X=420:2} ttl 2970, writers {w:X=2} ttl 59970
      460 read.release A 0 0 publish -> freed, sent wake:w:X=0
      460 keys -> queue {w:X=2} ttl 59960, signs {=420:410 w:X=420:2} ttl
        .. 2960, writers {w:X=2} ttl 59960
      470 write.acquire W 1000 2 1 publish -> lost
      470 write.renew W 1000 2 -> lost
      470 write.release W 1000 1 publish -> lost
    ]]
  end)

  it("evicts waiters that are silent", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      10 read.acquire A 1000 1 1 publish -> busy 8990
      20 write.acquire X 1000 1 1 publish -> busy 8980
      30 read.acquire B 1000 1 1 publish -> busy 8970
      40 write.acquire Y 1000 1 1 publish -> busy 8960
      500 read.acquire B 1000 1 1 publish -> busy 8500
      600 write.release W 1000 0 publish -> freed, sent wake:r:A=0
      610 write.acquire Y 1000 1 1 publish -> busy 600
      620 read.acquire B 1000 1 1 publish -> busy 600
      1000 read.acquire B 1000 1 1 publish -> busy 220
      1100 write.acquire Y 1000 1 1 publish -> busy 110
      1200 keys -> queue {r:A=1 r:B=3 w:X=2 w:Y=4} ttl 58840, signs
        .. {=1100:10 r:A=10:1 r:B=1000:3 w:X=20:2 w:Y=1100:4} ttl 2900,
        .. writers {w:X=2 w:Y=4} ttl 58840
      1210 write.acquire Y 1000 1 1 publish -> busy 10, sent wake:w:X=0
      1210 keys -> queue {r:B=3 w:X=2 w:Y=4} ttl 58830, signs {=1210:10
        .. r:B=1000:3 w:X=20:2 w:Y=1210:4} ttl 3000, writers {w:X=2 w:Y=4}
        .. ttl 58830
      1219 read.acquire B 1000 1 1 publish -> busy 1
      1220 read.acquire B 1000 1 1 publish -> held
      1220 keys -> frw {r:B=2220} ttl 1000, queue {w:Y=4} ttl 58820, signs
        .. {=1219:10 w:Y=1210:4} ttl 2999, writers {w:Y=4} ttl 58820
      1230 read.release B 0 0 publish -> freed, sent wake:w:Y=0
      1240 write.acquire Y 1000 1 1 publish -> held
      1240 keys -> frw {w:Y=2240} ttl 1000, signs {=1219:10} ttl 2979
    ]]
  end)

  it("evicts no waiter after a silence of all", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      100 write.acquire X 1000 1 1 publish -> busy 8900
      200 write.acquire Y 1000 1 1 publish -> busy 8800
      300 write.release W 1000 0 publish -> freed, sent wake:w:X=0
      2000 write.acquire Y 1000 1 1 publish -> busy 1200
      2000 keys -> queue {w:X=1 w:Y=2} ttl 58200, signs {=2000:2000
        .. w:X=100:1 w:Y=2000:2} ttl 3000, writers {w:X=1 w:Y=2} ttl 58200
      2500 write.acquire Y 1000 1 1 publish -> busy 700
      3000 write.acquire Y 1000 1 1 publish -> busy 200
      3199 write.acquire Y 1000 1 1 publish -> busy 1
      3200 write.acquire Y 1000 1 1 publish -> held
      3200 keys -> frw {w:Y=4200} ttl 1000, signs {=3199:2000} ttl 2999
    ]]
  end)

  it("admits a single try only if no live waiter is ahead", function()
    check [[
      0 write.acquire W 300 1 1 publish -> held
      100 write.acquire X 1000 1 1 publish -> busy 200
      200 read.acquire A 1000 1 0 publish -> busy 100
      200 write.acquire Y 1000 1 0 publish -> busy 100
      300 read.acquire A 1000 1 0 publish -> busy 1000
      300 write.acquire Y 1000 1 0 publish -> busy 1000
      300 keys -> queue {w:X=1} ttl 59800, signs {=100:100 w:X=100:1} ttl
        .. 2800, writers {w:X=1} ttl 59800
      1299 write.acquire Y 1000 1 0 publish -> busy 1
      1299 keys -> queue {w:X=1} ttl 58801, signs {=100:100 w:X=100:1} ttl
        .. 1801, writers {w:X=1} ttl 58801
      2600 write.acquire Y 1000 1 0 publish -> busy 1200
      2600 keys -> queue {w:X=1} ttl 57500, signs {=2600:2600 w:X=100:1} ttl
        .. 500, writers {w:X=1} ttl 57500
      2700 read.acquire A 1000 1 0 publish -> busy 1100
      4000 write.acquire Z 1000 1 0 publish -> held
      4000 keys -> frw {w:Z=5000} ttl 1000, queue {w:X=1} ttl 56100, writers
        .. {w:X=1} ttl 56100
    ]]
  end)

  it("keeps the place of a waiter", function()
    check [[
      0 write.acquire W 99000 1 1 publish -> held
      9000 write.acquire X 1000 1 1 publish -> busy 90000
      9000 keys -> frw {w:W=99000} ttl 90000, queue {w:X=1} ttl 60000, signs
        .. {=9000:9000 w:X=9000:1} ttl 3000, writers {w:X=1} ttl 60000
      9400 write.acquire X 1000 1 1 publish -> busy 89600
      9400 keys -> frw {w:W=99000} ttl 89600, queue {w:X=1} ttl 59600, signs
        .. {=9400:9000 w:X=9400:1} ttl 3000, writers {w:X=1} ttl 59600
      9800 write.acquire X 1000 1 1 publish -> busy 89200
      10200 write.acquire X 1000 1 1 publish -> busy 88800
      10200 keys -> frw {w:W=99000} ttl 88800, queue {w:X=1} ttl 60000,
        .. signs {=10200:9000 w:X=10200:1} ttl 3000, writers {w:X=1} ttl
        .. 60000
      10300 read.acquire X 1000 1 1 publish -> busy 88700
      10300 keys -> frw {w:W=99000} ttl 88700, queue {r:X=2 w:X=1} ttl
        .. 60000, signs {=10300:9000 r:X=10300:2 w:X=10200:1} ttl 3000,
        .. writers {w:X=1} ttl 59900
      13000 write.acquire Y 1000 1 1 publish -> busy 86000
      14200 keys -> frw {w:W=99000} ttl 84800, queue {r:X=2 w:X=1 w:Y=3} ttl
        .. 58800, signs {=13000:13000 r:X=10300:2 w:X=10200:1 w:Y=13000:3}
        .. ttl 1800, writers {w:X=1 w:Y=3} ttl 58800
      14300 write.acquire X 1000 1 1 publish -> busy 84700
      14300 keys -> frw {w:W=99000} ttl 84700, queue {r:X=2 w:X=1 w:Y=3} ttl
        .. 58700, signs {=14300:14300 r:X=10300:2 w:X=14300:1 w:Y=13000:3}
        .. ttl 3000, writers {w:X=1 w:Y=3} ttl 58700
    ]]
  end)

  it("lets waiters leave", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      10 write.acquire X 1000 1 1 publish -> busy 8990
      20 read.acquire A 1000 1 1 publish -> busy 8980
      30 read.acquire B 1000 1 1 publish -> busy 8970
      40 write.acquire Y 1000 1 1 publish -> busy 8960
      50 write.leave X publish -> left
      50 keys -> frw {w:W=9000} ttl 8950, queue {r:A=2 r:B=3 w:Y=4} ttl
        .. 59990, signs {=40:10 r:A=20:2 r:B=30:3 w:Y=40:4} ttl 2990,
        .. writers {w:Y=4} ttl 59990
      60 write.release W 1000 0 publish -> freed, sent wake:r:A=0 wake:r:B=0
      70 read.acquire B 1000 1 1 publish -> held
      80 read.leave A publish -> left
      80 keys -> frw {r:B=1070} ttl 990, queue {w:Y=4} ttl 59960, signs
        .. {=40:10 w:Y=40:4} ttl 2960, writers {w:Y=4} ttl 59960
      90 write.leave Y publish -> left
      90 keys -> frw {r:B=1070} ttl 980, signs {=40:10} ttl 2950
      100 write.leave Y publish -> left
      110 write.acquire Y 1000 1 1 publish -> busy 960
      120 read.acquire C 1000 1 1 publish -> busy 1190
      130 write.leave Y publish -> left, sent wake:r:C=0
      140 write.leave C publish -> left
      150 read.release B 1000 0 publish -> freed, sent wake:r:C=0
      150 keys -> queue {r:C=2} ttl 59970, signs {=120:10 r:C=120:2} ttl
        .. 2970
      160 read.leave C publish -> left
      160 keys -> signs {=120:10} ttl 2960
    ]]
  end)

  it("breaks it for one side", function()
    check [[
      0 read.break_ - publish -> free
      0 read.acquire A 1000 1 1 publish -> held
      10 write.break_ - publish -> free
      10 write.acquire W 1000 1 1 publish -> busy 990
      20 read.break_ 1 publish -> refused a read/write lock has no fencing
        .. tokens
      30 read.break_ - publish -> freed, sent wake:w:W=0
      30 keys -> queue {w:W=1} ttl 59980, signs {=10:10 w:W=10:1} ttl 2980,
        .. writers {w:W=1} ttl 59980
      40 read.break_ - publish -> free
      1209 write.break_ - publish -> free
      1210 write.break_ - publish -> freed
      1210 keys -> signs {=10:10} ttl 1800
      1220 write.acquire W 1000 1 1 publish -> held
      1230 read.acquire W 1000 2 1 publish -> lost
      1230 read.acquire W 1000 1 1 publish -> held
      1240 read.break_ - publish -> free
      1250 write.break_ - publish -> freed
      1250 keys -> signs {=10:10} ttl 1760
    ]]
  end)

  it("shows its holders and waiters", function()
    check [=[
      0 read.peek A -> free -2 0 [] [queue []]
      0 read.acquire A 1000 1 1 publish -> held
      0 read.acquire A 1000 2 1 publish -> held
      10 read.acquire B 500 1 1 publish -> held
      20 write.acquire W 1000 1 1 publish -> busy 980
      30 read.peek A -> held 970 2 [B 1 A 2] [queue [w:W]]
      30 read.peek B -> held 970 1 [B 1 A 2] [queue [w:W]]
      30 read.peek C -> held 970 0 [B 1 A 2] [queue [w:W]]
      30 write.peek W -> free -2 0 [] [queue [w:W]]
      510 read.peek B -> held 490 0 [A 2] [queue [w:W]]
      1000 read.peek A -> free -2 0 [] [queue [w:W]]
      1010 write.acquire W 1000 1 1 publish -> held
      1010 write.acquire W 1000 5 1 publish -> held
      1020 write.peek W -> held 990 5 [W 5] [queue []]
      1020 read.peek W -> free -2 0 [] [queue []]
    ]=]
  end)

  it("drops dead holders, a few at a time", function()
    check [[
      0 read.acquire A 9000 1 1 publish -> held
      0 read.acquire A 9000 2 1 publish -> held
      0 ZADD rlock_frw:@ +10 r:a +11 r:b +12 r:c +13 r:d +14 r:e +15 r:f +16
        .. r:g +17 r:h +18 r:i +19 r:j -> 10
      20 read.acquire B 1000 1 1 publish -> held
      20 keys -> frw {r:A=9000 r:B=1020 r:i=18 r:j=19} ttl 8980, counts
        .. {r:A=2} ttl 8980
      30 write.acquire W 1000 1 1 publish -> busy 8970
      30 keys -> frw {r:A=9000 r:B=1020} ttl 8970, counts {r:A=2} ttl 8970,
        .. queue {w:W=1} ttl 60000, signs {=30:30 w:W=30:1} ttl 3000,
        .. writers {w:W=1} ttl 60000
      40 read.release B 500 0 publish -> freed
      40 keys -> frw {r:A=9000} ttl 8960, counts {r:A=2} ttl 8960, queue
        .. {w:W=1} ttl 59990, signs {=30:30 w:W=30:1} ttl 2990, writers
        .. {w:W=1} ttl 59990
      9000 write.acquire W 1000 1 1 publish -> held
      9000 keys -> frw {w:W=10000} ttl 1000
    ]]
  end)

  it("wakes the next waiters after it has evicted dead ones", function()
    check [[
      0 read.acquire A 9000 1 1 publish -> held
      10 write.acquire W 1000 1 1 publish -> busy 8990
      20 read.acquire B 1000 1 1 publish -> busy 1190
      30 read.acquire C 1000 1 1 publish -> busy 1180
      40 write.acquire X 1000 1 1 publish -> busy 8960
      600 read.acquire C 1000 1 1 publish -> busy 610
      1100 read.acquire C 1000 1 1 publish -> busy 110
      1100 write.acquire X 1000 1 1 publish -> busy 7900
      1210 write.acquire X 1000 1 1 publish -> busy 7790
      1219 write.acquire X 1000 1 1 publish -> busy 7781
      1220 write.acquire X 1000 1 1 publish -> busy 7780
      1220 keys -> frw {r:A=9000} ttl 7780, queue {r:B=2 r:C=3 w:W=1 w:X=4}
        .. ttl 58820, signs {=1220:10 r:B=20:2 r:C=1100:3 w:W=10:1
        .. w:X=1220:4} ttl 3000, writers {w:W=1 w:X=4} ttl 58820
      1230 read.acquire C 1000 1 1 publish -> held, sent wake:r:B=0
    ]]
  end)

  it("leaves the rest of very many dead waiters for later", function()
    check [[
      0 ZADD rlock_frw_queue:@ 1,r:W*450 -> 450
      10 write.acquire X 1000 1 1 publish -> busy 1200
      10 ZCARD rlock_frw_queue:@ -> 451
      600 write.acquire X 1000 1 1 publish -> busy 610
      1100 write.acquire X 1000 1 1 publish -> busy 110
      1210 write.acquire X 1000 1 1 publish -> busy 1, sent wake:r:W370=0
        .. wake:r:W371=0 wake:r:W372=0 wake:r:W373=0 wake:r:W374=0
        .. wake:r:W375=0 wake:r:W376=0 and 143 more
      1210 ZCARD rlock_frw_queue:@ -> 150
      1220 read.acquire A 1000 1 0 publish -> busy 1190
      1230 read.release A 1000 0 publish -> lost
      1240 write.acquire X 1000 1 1 publish -> held
      1240 ZCARD rlock_frw_queue:@ -> 0
    ]]
  end)

  it("lets any of many holders enter again", function()
    check [[
      0 read.acquire A 1000 1 1 publish -> held
      0 read.acquire B 2000 1 1 publish -> held
      0 read.acquire C 3000 1 1 publish -> held
      10 read.acquire C 3000 2 1 publish -> held
      10 read.acquire A 3000 2 1 publish -> held
      20 write.acquire C 1000 1 1 publish -> refused upgrade: this owner
        .. reads, and a writer waits for all readers
      30 read.acquire D 9000 1 1 publish -> held
      30 read.acquire D 100 2 1 publish -> held
      30 keys -> frw {r:A=3010 r:B=2000 r:C=3010 r:D=9030} ttl 9000, counts
        .. {r:A=2 r:C=2 r:D=2} ttl 9000
      40 read.release D 100 0 publish -> freed
      40 keys -> frw {r:A=3010 r:B=2000 r:C=3010} ttl 2970, counts {r:A=2
        .. r:C=2} ttl 2970
    ]]
  end)

  it("forgets holders, and their counts, when their leases end", function()
    check [[
      0 read.acquire A 100 1 1 publish -> held
      0 read.acquire A 100 2 1 publish -> held
      0 read.acquire B 9000 1 1 publish -> held
      0 read.acquire B 9000 2 1 publish -> held
      99 read.renew A 100 2 -> held
      199 read.renew A 100 2 -> lost
      199 read.release A 100 1 publish -> lost
      199 read.acquire A 100 2 1 publish -> lost
      199 keys -> frw {r:B=9000} ttl 8801, counts {r:B=2} ttl 8801
      200 read.acquire C 100 1 1 publish -> held
      299 read.acquire C 100 2 1 publish -> held
      300 write.acquire C 100 1 1 publish -> refused upgrade: this owner
        .. reads, and a writer waits for all readers
      310 keys -> frw {r:B=9000 r:C=399} ttl 8690, counts {r:B=2 r:C=2} ttl
        .. 8690
      9000 read.release B 100 0 publish -> lost
      9000 read.acquire B 100 2 1 publish -> lost
      9000 read.break_ - publish -> free
      9000 keys -> none
    ]]
  end)

  it("is kept by a writer that reads for a shorter time", function()
    check [=[
      0 write.acquire W 9000 1 1 publish -> held
      0 read.acquire W 100 1 1 publish -> held
      10 read.acquire W 100 2 1 publish -> held
      20 read.acquire A 1000 1 1 publish -> busy 8980
      30 read.break_ - publish -> free
      40 read.peek W -> held 8960 2 [W 2] [queue [r:A]]
      40 keys -> frw {r:W=110 w:W=9000} ttl 8960, counts {r:W=2} ttl 8960,
        .. queue {r:A=1} ttl 59980, signs {=20:20 r:A=20:1} ttl 2980
      50 read.leave A publish -> left
      60 read.acquire A 1000 1 1 publish -> busy 8940
      110 read.acquire A 1000 1 1 publish -> busy 8890
      110 keys -> frw {w:W=9000} ttl 8890, queue {r:A=1} ttl 59950, signs
        .. {=110:20 r:A=110:1} ttl 3000
      120 read.acquire W 9999 1 1 publish -> held
      130 read.acquire A 1000 1 1 publish -> busy 8870
      140 read.leave A publish -> left
      150 write.break_ 1 publish -> refused a read/write lock has no fencing
        .. tokens
      150 write.break_ - publish -> freed
      150 keys -> signs {=130:20} ttl 2980
    ]=]
  end)

  it("keeps the place of a waiter without a heartbeat", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      10 read.acquire A 1000 1 1 publish -> busy 8990
      20 write.acquire X 1000 1 1 publish -> busy 8980
      30 read.acquire B 1000 1 1 publish -> busy 8970
      40 HDEL rlock_frw_signs:@ w:X r:A -> 2
      50 write.acquire X 1000 1 1 publish -> busy 8950
      60 read.acquire A 1000 1 1 publish -> busy 8940
      60 keys -> frw {w:W=9000} ttl 8940, queue {r:A=1 r:B=3 w:X=2} ttl
        .. 60000, signs {=60:10 r:A=60:1 r:B=30:3 w:X=50:2} ttl 3000,
        .. writers {w:X=2} ttl 59990
      70 DEL rlock_frw_signs:@ -> 1
      80 read.acquire B 1000 1 1 publish -> busy 8920
      80 keys -> frw {w:W=9000} ttl 8920, queue {r:A=1 r:B=3 w:X=2} ttl
        .. 60000, signs {=80:80 r:B=80:3} ttl 3000, writers {w:X=2} ttl
        .. 59970
      90 write.release W 1000 0 publish -> freed, sent wake:r:A=0 wake:w:X=0
        .. wake:r:B=0
      90 keys -> queue {r:A=1 r:B=3 w:X=2} ttl 59990, signs {=80:80
        .. r:B=80:3} ttl 2990, writers {w:X=2} ttl 59960
    ]]
  end)

  it("wakes very many readers, but not all", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      0 ZADD rlock_frw_queue:@ 1,r:R*1100 -> 1100
      10 write.acquire X 9000 1 1 publish -> busy 8990
      20 write.release W 9000 0 publish -> freed, sent wake:r:R1=0
        .. wake:r:R10=0 wake:r:R100=0 wake:r:R1000=0 wake:r:R1001=0
        .. wake:r:R1002=0 wake:r:R1003=0 and 1001 more
    ]]
  end)

  it("renews and releases without a change for others", function()
    check [[
      0 read.acquire A 1000 1 1 publish -> held
      0 read.acquire A 1000 2 1 publish -> held
      0 read.acquire A 1000 3 1 publish -> held
      0 read.acquire B 9000 1 1 publish -> held
      0 read.acquire B 9000 2 1 publish -> held
      10 read.renew A 300 3 -> held
      10 keys -> frw {r:A=1000 r:B=9000} ttl 8990, counts {r:A=3 r:B=2} ttl
        .. 8990
      20 read.release A 500 2 publish -> kept
      20 keys -> frw {r:A=520 r:B=9000} ttl 8980, counts {r:A=2 r:B=2} ttl
        .. 8980
      30 read.release B 2000 1 publish -> kept
      30 keys -> frw {r:A=520 r:B=2030} ttl 2000, counts {r:A=2} ttl 2000
      40 read.release A 3000 1 publish -> kept
      40 keys -> frw {r:A=3040 r:B=2030} ttl 3000
    ]]
  end)

  it("evicts a dead reader by force", function()
    check [[
      0 write.acquire W 500 1 1 publish -> held
      10 read.acquire A 1000 1 1 publish -> busy 490
      1209 write.break_ - publish -> free
      1210 write.break_ - publish -> freed
      1210 keys -> signs {=10:10} ttl 1800
    ]]
  end)

  it("takes a writer that reads out of the queue of readers", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      0 ZADD rlock_frw_queue:@ 1 r:W -> 1
      10 read.acquire W 9000 1 1 publish -> held
      10 keys -> frw {r:W=9010 w:W=9000} ttl 9000
    ]]
  end)

  it("admits a try without a message if no waiter was heard", function()
    check [[
      0 ZADD rlock_frw_queue:@ 1 w:X 2 r:A -> 2
      0 ZADD rlock_frw_writers:@ 1 w:X -> 1
      10 read.acquire B 500 1 0 publish -> held
      10 keys -> frw {r:B=510} ttl 500, queue {r:A=2 w:X=1}, writers {w:X=1}
      600 write.acquire B 500 1 0 publish -> held
      600 keys -> frw {w:B=1100} ttl 500, queue {r:A=2 w:X=1}, writers
        .. {w:X=1}
    ]]
  end)

  it("evicts a waiter that was silent for two starts of the queue", function()
    check [[
      0 write.acquire W 9000 1 1 publish -> held
      10 write.acquire X 1000 1 1 publish -> busy 8990
      20 write.acquire Y 1000 1 1 publish -> busy 8980
      30 write.release W 0 0 publish -> freed, sent wake:w:X=0
      2000 write.acquire Y 1000 1 1 publish -> busy 1200
      2000 keys -> queue {w:X=1 w:Y=2} ttl 58020, signs {=2000:2000 w:X=10:1
        .. w:Y=2000:2} ttl 3000, writers {w:X=1 w:Y=2} ttl 58020
      3300 write.acquire Y 1000 1 1 publish -> held
      3300 keys -> frw {w:Y=4300} ttl 1000, signs {=2000:2000} ttl 1700
    ]]
  end)

  it("evicts a silent writer before readers, and wakes them", function()
    check [[
      0 read.acquire A 9000 1 1 publish -> held
      10 write.acquire W 1000 1 1 publish -> busy 8990
      20 read.acquire B 1000 1 1 publish -> busy 1190
      30 read.acquire C 1000 1 1 publish -> busy 1180
      600 read.refresh publish B C -> busy 610
      1200 read.refresh publish B C -> busy 10
      1300 read.acquire B 1000 1 1 publish -> held, sent wake:r:C=0
      1300 keys -> frw {r:A=9000 r:B=2300} ttl 7700, queue {r:C=3} ttl 58730,
        .. signs {=1200:10 r:C=1200:3} ttl 2900
    ]]
  end)

  it("evicts the silent after the server's clock was set back", function()
    check [[
      3600000 write.acquire A 1000 1 1 publish -> held
      3600010 write.acquire W 1000 1 1 publish -> busy 990
      3600020 read.acquire C 1000 1 1 publish -> busy 980
      3600030 write.release A 1000 0 publish -> freed, sent wake:w:W=0
      1000 read.acquire C 1000 1 1 publish -> busy 1200
      1900 read.acquire C 1000 1 1 publish -> busy 300
      2199 read.acquire C 1000 1 1 publish -> busy 1
      2200 read.acquire C 1000 1 1 publish -> held
      2300 read.acquire C 1000 1 1 publish -> held
    ]]
  end)

  it("gives waiters time if the heartbeats are lost", function()
    check [[
      0 write.acquire A 9000 1 1 publish -> held
      10 write.acquire W 1000 1 1 publish -> busy 8990
      20 read.acquire C 1000 1 1 publish -> busy 8980
      30 write.release A 1000 0 publish -> freed, sent wake:w:W=0
      40 DEL rlock_frw_signs:@ -> 1
      50 read.acquire C 1000 1 1 publish -> busy 1200
      500 read.acquire C 1000 1 1 publish -> busy 750
      1100 read.acquire C 1000 1 1 publish -> busy 150
      1250 read.acquire C 1000 1 1 publish -> held
      1300 read.acquire C 1000 1 1 publish -> held
    ]]
  end)

  it("restores the places of a queue that was deleted", function()
    check [[
      9500 write.acquire A 9000 1 1 publish -> held
      9510 write.acquire W 1000 1 1 publish -> busy 8990
      9520 read.acquire C 1000 1 1 publish -> busy 8980
      9530 write.acquire X 1000 1 1 publish -> busy 8970
      9540 DEL rlock_frw_queue:@ rlock_frw_writers:@ -> 2
      10100 write.acquire X 1000 1 1 publish -> busy 8400
      10110 read.acquire C 1000 1 1 publish -> busy 8390
      10120 write.acquire W 1000 1 1 publish -> busy 8380
      10120 keys -> frw {w:A=18500} ttl 8380, queue {r:C=2 w:W=1 w:X=3} ttl
        .. 60000, signs {=10120:9510 r:C=10110:2 w:W=10120:1 w:X=10100:3} ttl
        .. 3000, writers {w:W=1 w:X=3} ttl 60000
    ]]
  end)

  it("evicts a writer that is not in the queue of all", function()
    check [[
      0 read.acquire A 9000 1 1 publish -> held
      10 write.acquire W 1000 1 1 publish -> busy 8990
      20 read.acquire C 1000 1 1 publish -> busy 1190
      30 ZREM rlock_frw_queue:@ w:W -> 1
      600 read.acquire C 1000 1 1 publish -> busy 610
      1200 read.acquire C 1000 1 1 publish -> busy 10
      1300 read.acquire C 1000 1 1 publish -> held
      1300 keys -> frw {r:A=9000 r:C=2300} ttl 7700, signs {=1200:10} ttl 2900
    ]]
  end)

  it("does not trust a heartbeat that is malformed", function()
    check [[
      0 write.acquire A 9000 1 1 publish -> held
      10 write.acquire W 1000 1 1 publish -> busy 8990
      20 read.acquire C 1000 1 1 publish -> busy 8980
      30 write.release A 1000 0 publish -> freed, sent wake:w:W=0
      40 HSET rlock_frw_signs:@ w:W x -> 0
      50 read.acquire C 1000 1 1 publish -> busy 1160
      60 HSET rlock_frw_signs:@ w:W :1 -> 0
      70 read.acquire C 1000 1 1 publish -> busy 1140
      80 HSET rlock_frw_signs:@ w:W 1e9:1 -> 0
      600 read.acquire C 1000 1 1 publish -> busy 610
      1200 read.acquire C 1000 1 1 publish -> busy 10
      1300 read.acquire C 1000 1 1 publish -> held
    ]]
  end)
end)
