--- The operations of a fair read/write lock at exact times, on the model of
--- Redis.

local transcript = require "spec.tools.transcript"

local case = transcript.tests(it, "fair_readwrite")

describe("a fair read/write lock", function()
  case("refreshes several waiters, and names those that can enter", [[
    0 write.acquire A 1000 1 1 publish -> held
    100 write.acquire B 2000 1 1 publish -> busy 900
    110 read.acquire C 2000 1 1 publish -> busy 890
    120 read.acquire D 2000 1 1 publish -> busy 880
    130 write.acquire E 2000 1 1 publish -> busy 870
    140 read.acquire F 2000 1 1 publish -> busy 860
    500 write.refresh publish B E X -> busy 500 X
    500 keys -> frw {w:A=1000}, queue {r:C=2 r:D=3 r:F=5 w:B=1 w:E=4}, signs
      .. {=500:100 r:C=110:2 r:D=120:3 r:F=140:5 w:B=500:1 w:E=500:4}, writers
      .. {w:B=1 w:E=4}, until 1000 frw, until 3500 signs, until 60130 writers,
      .. until 60140 queue
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
    1421 keys -> frw {r:C=2310 -w:A}, queue {-r:C -w:B}, signs {=1421:100 -r:C
      .. r:D=1420:3 r:F=1420:5 -w:B w:E=1421:4}, writers {-w:B}, until 2310 frw,
      .. until 4421 signs
    2700 read.refresh publish F -> busy 1200, sent wake:r:D=0 wake:w:E=0
      .. wake:r:F=0
    2700 keys -> -frw, signs {=2700:2700 r:F=2700:5}, until 5700 signs
    2720 read.refresh publish G -> busy 1180 G, sent wake:r:D=0 wake:w:E=0
      .. wake:r:F=0
    2800 keys -> same
  ]])

  case("lets readers share it, and queues writers", [[
    0 read.acquire A 1000 1 1 publish -> held
    0 keys -> frw {r:A=1000}, until 1000 frw
    100 read.acquire B 2000 1 1 publish -> held
    100 keys -> frw {r:B=2100}, until 2100 frw
    200 write.acquire W 2000 1 1 publish -> busy 1900
    200 keys -> queue {w:W=1}, signs {=200:200 w:W=200:1}, writers {w:W=1},
      .. until 3200 signs, until 60200 queue writers
    300 read.acquire C 2000 1 1 publish -> busy 1100
    300 keys -> queue {r:C=2}, signs {=300:200 r:C=300:2}, until 3300 signs,
      .. until 60300 queue
    310 read.acquire A 500 2 1 publish -> held
    310 keys -> counts {r:A=2}, until 2100 counts
    320 read.acquire A 5000 3 1 publish -> held
    320 keys -> counts {r:A=3}, frw {r:A=5320}, until 5320 counts frw
    330 read.release A 700 1 publish -> kept
    330 keys -> -counts, frw {r:A=1030}, until 2100 frw
    340 read.renew A 300 1 -> held
    341 read.renew A 900 2 -> held
    341 keys -> counts {r:A=2}, frw {r:A=1241}, until 2100 counts
    350 read.acquire D 1000 1 0 publish -> busy 1050
    360 write.acquire A 1000 1 1 publish -> refused upgrade: this owner reads,
      .. and a writer waits for all readers
    400 read.release A 700 0 publish -> freed
    400 read.release A 700 0 publish -> lost
    500 read.release B 700 0 publish -> freed, sent wake:w:W=0
    500 keys -> -counts, -frw
    510 read.acquire C 2000 1 1 publish -> busy 890
    520 write.acquire W 2000 1 1 publish -> held
    520 keys -> frw {w:W=2520}, queue {-w:W}, signs {=510:200 r:C=510:2 -w:W},
      .. -writers, until 2520 frw, until 3510 signs
    530 read.acquire C 2000 1 1 publish -> busy 1990
    600 write.release W 2000 0 publish -> freed, sent wake:r:C=0
    600 keys -> -frw, signs {=530:200 r:C=530:2}, until 3530 signs
    610 read.acquire C 2000 1 1 publish -> held
    610 keys -> frw {r:C=2610}, -queue, signs {-r:C}, until 2610 frw
  ]])

  case("lets readers in between two writers", [[
    0 write.acquire W 1000 1 1 publish -> held
    10 read.acquire A 1000 1 1 publish -> busy 990
    20 read.acquire B 1000 1 1 publish -> busy 980
    30 write.acquire X 1000 1 1 publish -> busy 970
    40 read.acquire C 1000 1 1 publish -> busy 960
    50 write.acquire Y 1000 1 1 publish -> busy 950
    60 keys -> frw {w:W=1000}, queue {r:A=1 r:B=2 r:C=4 w:X=3 w:Y=5}, signs
      .. {=50:10 r:A=10:1 r:B=20:2 r:C=40:4 w:X=30:3 w:Y=50:5}, writers {w:X=3
      .. w:Y=5}, until 1000 frw, until 3050 signs, until 60050 queue writers
    100 write.release W 1000 0 publish -> freed, sent wake:r:A=0 wake:r:B=0
    110 read.acquire C 1000 1 1 publish -> busy 1120
    120 read.acquire B 1000 1 1 publish -> held
    130 read.acquire A 1000 1 1 publish -> held
    130 keys -> frw {r:A=1130 r:B=1120 -w:W}, queue {-r:A -r:B}, signs {=110:10
      .. -r:A -r:B r:C=110:4}, until 1130 frw, until 3110 signs
    140 write.acquire X 1000 1 1 publish -> busy 990
    150 read.release A 1000 0 publish -> freed
    160 read.release B 1000 0 publish -> freed, sent wake:w:X=0
    170 write.acquire X 1000 1 1 spublish -> held
    180 write.release X 1000 0 both -> freed, sent wake:r:C=0 s:wake:r:C=0
    190 read.acquire C 1000 1 1 publish -> held
    200 write.acquire Y 1000 1 1 publish -> busy 990
    210 read.release C 1000 0 publish -> freed, sent wake:w:Y=0
    220 write.acquire Y 1000 1 1 publish -> held
    220 keys -> frw {-r:A -r:B w:Y=1220}, -queue, signs {=200:10 -r:C -w:X
      .. -w:Y}, -writers, until 1220 frw, until 3200 signs
  ]])

  case("lets the writer enter again, read, and go on as a reader", [[
    0 write.acquire W 1000 1 1 publish -> held
    100 write.acquire W 500 2 1 publish -> held
    100 keys -> counts {w:W=2}, frw {w:W=1000}, until 1000 counts frw
    200 write.acquire W 2000 3 1 publish -> held
    200 keys -> counts {w:W=3}, frw {w:W=2200}, until 2200 counts frw
    300 write.release W 700 1 publish -> kept
    300 keys -> -counts, frw {w:W=1000}, until 1000 frw
    310 write.renew W 600 1 -> held
    311 write.renew W 800 2 -> held
    311 keys -> counts {w:W=2}, frw {w:W=1111}, until 1111 counts frw
    400 read.acquire W 5000 1 1 publish -> held
    400 keys -> frw {r:W=5400}, until 5400 frw
    410 read.acquire A 1000 1 1 publish -> busy 701
    420 write.acquire X 1000 1 1 publish -> busy 4980
    430 write.release W 700 0 publish -> freed, sent wake:r:A=0
    430 keys -> -counts, frw {-w:W}, queue {r:A=1 w:X=2}, signs {=420:410
      .. r:A=410:1 w:X=420:2}, writers {w:X=2}, until 3420 signs, until 60420
      .. queue writers
    440 read.acquire A 1000 1 1 publish -> held
    450 read.release W 700 0 publish -> freed
    450 keys -> frw {r:A=1440 -r:W}, queue {-r:A}, signs {-r:A}, until 1440 frw
    460 read.release A 0 0 publish -> freed, sent wake:w:X=0
    460 keys -> -frw
    470 write.acquire W 1000 2 1 publish -> lost
    470 write.renew W 1000 2 -> lost
    470 write.release W 1000 1 publish -> lost
  ]])

  case("evicts waiters that are silent", [[
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
    1200 keys -> queue {r:A=1 r:B=3 w:X=2 w:Y=4}, signs {=1100:10 r:A=10:1
      .. r:B=1000:3 w:X=20:2 w:Y=1100:4}, writers {w:X=2 w:Y=4}, until 4100
      .. signs, until 60040 queue writers
    1210 write.acquire Y 1000 1 1 publish -> busy 10, sent wake:w:X=0
    1210 keys -> queue {-r:A}, signs {=1210:10 -r:A w:Y=1210:4}, until 4210
      .. signs
    1219 read.acquire B 1000 1 1 publish -> busy 1
    1220 read.acquire B 1000 1 1 publish -> held
    1220 keys -> frw {r:B=2220}, queue {-r:B -w:X}, signs {=1219:10 -r:B -w:X},
      .. writers {-w:X}, until 2220 frw, until 4219 signs
    1230 read.release B 0 0 publish -> freed, sent wake:w:Y=0
    1240 write.acquire Y 1000 1 1 publish -> held
    1240 keys -> frw {-r:B w:Y=2240}, -queue, signs {-w:Y}, -writers, until 2240
      .. frw
  ]])

  case("evicts no waiter after a silence of all", [[
    0 write.acquire W 9000 1 1 publish -> held
    100 write.acquire X 1000 1 1 publish -> busy 8900
    200 write.acquire Y 1000 1 1 publish -> busy 8800
    300 write.release W 1000 0 publish -> freed, sent wake:w:X=0
    2000 write.acquire Y 1000 1 1 publish -> busy 1200
    2000 keys -> queue {w:X=1 w:Y=2}, signs {=2000:2000 w:X=100:1 w:Y=2000:2},
      .. writers {w:X=1 w:Y=2}, until 5000 signs, until 60200 queue writers
    2500 write.acquire Y 1000 1 1 publish -> busy 700
    3000 write.acquire Y 1000 1 1 publish -> busy 200
    3199 write.acquire Y 1000 1 1 publish -> busy 1
    3200 write.acquire Y 1000 1 1 publish -> held
    3200 keys -> frw {w:Y=4200}, -queue, signs {=3199:2000 -w:X -w:Y}, -writers,
      .. until 4200 frw, until 6199 signs
  ]])

  case("admits a single try only if no live waiter is ahead", [[
    0 write.acquire W 300 1 1 publish -> held
    100 write.acquire X 1000 1 1 publish -> busy 200
    200 read.acquire A 1000 1 0 publish -> busy 100
    200 write.acquire Y 1000 1 0 publish -> busy 100
    300 read.acquire A 1000 1 0 publish -> busy 1000
    300 write.acquire Y 1000 1 0 publish -> busy 1000
    300 keys -> queue {w:X=1}, signs {=100:100 w:X=100:1}, writers {w:X=1},
      .. until 3100 signs, until 60100 queue writers
    1299 write.acquire Y 1000 1 0 publish -> busy 1
    1299 keys -> same
    2600 write.acquire Y 1000 1 0 publish -> busy 1200
    2600 keys -> signs {=2600:2600}
    2700 read.acquire A 1000 1 0 publish -> busy 1100
    4000 write.acquire Z 1000 1 0 publish -> held
    4000 keys -> frw {w:Z=5000}, -signs, until 5000 frw
  ]])

  case("keeps the place of a waiter", [[
    0 write.acquire W 99000 1 1 publish -> held
    9000 write.acquire X 1000 1 1 publish -> busy 90000
    9000 keys -> frw {w:W=99000}, queue {w:X=1}, signs {=9000:9000 w:X=9000:1},
      .. writers {w:X=1}, until 12000 signs, until 69000 queue writers, until
      .. 99000 frw
    9400 write.acquire X 1000 1 1 publish -> busy 89600
    9400 keys -> signs {=9400:9000 w:X=9400:1}, until 12400 signs
    9800 write.acquire X 1000 1 1 publish -> busy 89200
    10200 write.acquire X 1000 1 1 publish -> busy 88800
    10200 keys -> signs {=10200:9000 w:X=10200:1}, until 13200 signs, until
      .. 70200 queue writers
    10300 read.acquire X 1000 1 1 publish -> busy 88700
    10300 keys -> queue {r:X=2}, signs {=10300:9000 r:X=10300:2}, until 13300
      .. signs, until 70300 queue
    13000 write.acquire Y 1000 1 1 publish -> busy 86000
    14200 keys -> queue {w:Y=3}, signs {=13000:13000 w:Y=13000:3}, writers
      .. {w:Y=3}, until 16000 signs, until 73000 queue writers
    14300 write.acquire X 1000 1 1 publish -> busy 84700
    14300 keys -> signs {=14300:14300 w:X=14300:1}, until 17300 signs
  ]])

  case("lets waiters leave", [[
    0 write.acquire W 9000 1 1 publish -> held
    10 write.acquire X 1000 1 1 publish -> busy 8990
    20 read.acquire A 1000 1 1 publish -> busy 8980
    30 read.acquire B 1000 1 1 publish -> busy 8970
    40 write.acquire Y 1000 1 1 publish -> busy 8960
    50 write.leave X publish -> left
    50 keys -> frw {w:W=9000}, queue {r:A=2 r:B=3 w:Y=4}, signs {=40:10 r:A=20:2
      .. r:B=30:3 w:Y=40:4}, writers {w:Y=4}, until 3040 signs, until 60040
      .. queue writers, until 9000 frw
    60 write.release W 1000 0 publish -> freed, sent wake:r:A=0 wake:r:B=0
    70 read.acquire B 1000 1 1 publish -> held
    80 read.leave A publish -> left
    80 keys -> frw {r:B=1070 -w:W}, queue {-r:A -r:B}, signs {-r:A -r:B}, until
      .. 1070 frw
    90 write.leave Y publish -> left
    90 keys -> -queue, signs {-w:Y}, -writers
    100 write.leave Y publish -> left
    110 write.acquire Y 1000 1 1 publish -> busy 960
    120 read.acquire C 1000 1 1 publish -> busy 1190
    130 write.leave Y publish -> left, sent wake:r:C=0
    140 write.leave C publish -> left
    150 read.release B 1000 0 publish -> freed, sent wake:r:C=0
    150 keys -> -frw, queue {r:C=2}, signs {=120:10 r:C=120:2}, until 3120
      .. signs, until 60120 queue
    160 read.leave C publish -> left
    160 keys -> -queue, signs {-r:C}
  ]])

  case("breaks it for one side", [[
    0 read.break_ - publish -> free
    0 read.acquire A 1000 1 1 publish -> held
    10 write.break_ - publish -> free
    10 write.acquire W 1000 1 1 publish -> busy 990
    20 read.break_ 1 publish -> refused a read/write lock has no fencing tokens
    30 read.break_ - publish -> freed, sent wake:w:W=0
    30 keys -> queue {w:W=1}, signs {=10:10 w:W=10:1}, writers {w:W=1}, until
      .. 3010 signs, until 60010 queue writers
    40 read.break_ - publish -> free
    1209 write.break_ - publish -> free
    1210 write.break_ - publish -> freed
    1210 keys -> -queue, signs {-w:W}, -writers
    1220 write.acquire W 1000 1 1 publish -> held
    1230 read.acquire W 1000 2 1 publish -> lost
    1230 read.acquire W 1000 1 1 publish -> held
    1240 read.break_ - publish -> free
    1250 write.break_ - publish -> freed
    1250 keys -> same
  ]])

  case("shows its holders and waiters", [=[
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
  ]=])

  case("drops dead holders, a few at a time", [[
    0 read.acquire A 9000 1 1 publish -> held
    0 read.acquire A 9000 2 1 publish -> held
    0 ZADD rlock_frw:@ +10 r:a +11 r:b +12 r:c +13 r:d +14 r:e +15 r:f +16 r:g
      .. +17 r:h +18 r:i +19 r:j -> 10
    20 read.acquire B 1000 1 1 publish -> held
    20 keys -> counts {r:A=2}, frw {r:A=9000 r:B=1020 r:i=18 r:j=19}, until 9000
      .. counts frw
    30 write.acquire W 1000 1 1 publish -> busy 8970
    30 keys -> frw {-r:i -r:j}, queue {w:W=1}, signs {=30:30 w:W=30:1}, writers
      .. {w:W=1}, until 3030 signs, until 60030 queue writers
    40 read.release B 500 0 publish -> freed
    40 keys -> frw {-r:B}
    9000 write.acquire W 1000 1 1 publish -> held
    9000 keys -> -counts, frw {-r:A w:W=10000}, -queue, -signs, -writers, until
      .. 10000 frw
  ]])

  case("wakes the next waiters after it has evicted dead ones", [[
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
    1220 keys -> frw {r:A=9000}, queue {r:B=2 r:C=3 w:W=1 w:X=4}, signs
      .. {=1220:10 r:B=20:2 r:C=1100:3 w:W=10:1 w:X=1220:4}, writers {w:W=1
      .. w:X=4}, until 4220 signs, until 60040 queue writers, until 9000 frw
    1230 read.acquire C 1000 1 1 publish -> held, sent wake:r:B=0
  ]])

  case("leaves the rest of very many dead waiters for later", [[
    0 ZADD rlock_frw_queue:@ 1,r:W*450 -> 450
    10 write.acquire X 1000 1 1 publish -> busy 1200
    10 ZCARD rlock_frw_queue:@ -> 451
    600 write.acquire X 1000 1 1 publish -> busy 610
    1100 write.acquire X 1000 1 1 publish -> busy 110
    1210 write.acquire X 1000 1 1 publish -> busy 1, sent wake:r:W370=0
      .. wake:r:W371=0 wake:r:W372=0 wake:r:W373=0 wake:r:W374=0 wake:r:W375=0
      .. wake:r:W376=0 and 143 more
    1210 ZCARD rlock_frw_queue:@ -> 150
    1220 read.acquire A 1000 1 0 publish -> busy 1190
    1230 read.release A 1000 0 publish -> lost
    1240 write.acquire X 1000 1 1 publish -> held
    1240 ZCARD rlock_frw_queue:@ -> 0
  ]])

  case("lets any of many holders enter again", [[
    0 read.acquire A 1000 1 1 publish -> held
    0 read.acquire B 2000 1 1 publish -> held
    0 read.acquire C 3000 1 1 publish -> held
    10 read.acquire C 3000 2 1 publish -> held
    10 read.acquire A 3000 2 1 publish -> held
    20 write.acquire C 1000 1 1 publish -> refused upgrade: this owner reads,
      .. and a writer waits for all readers
    30 read.acquire D 9000 1 1 publish -> held
    30 read.acquire D 100 2 1 publish -> held
    30 keys -> counts {r:A=2 r:C=2 r:D=2}, frw {r:A=3010 r:B=2000 r:C=3010
      .. r:D=9030}, until 9030 counts frw
    40 read.release D 100 0 publish -> freed
    40 keys -> counts {-r:D}, frw {-r:D}, until 3010 counts frw
  ]])

  case("forgets holders, and their counts, when their leases end", [[
    0 read.acquire A 100 1 1 publish -> held
    0 read.acquire A 100 2 1 publish -> held
    0 read.acquire B 9000 1 1 publish -> held
    0 read.acquire B 9000 2 1 publish -> held
    99 read.renew A 100 2 -> held
    199 read.renew A 100 2 -> lost
    199 read.release A 100 1 publish -> lost
    199 read.acquire A 100 2 1 publish -> lost
    199 keys -> counts {r:B=2}, frw {r:B=9000}, until 9000 counts frw
    200 read.acquire C 100 1 1 publish -> held
    299 read.acquire C 100 2 1 publish -> held
    300 write.acquire C 100 1 1 publish -> refused upgrade: this owner reads,
      .. and a writer waits for all readers
    310 keys -> counts {r:C=2}, frw {r:C=399}
    9000 read.release B 100 0 publish -> lost
    9000 read.acquire B 100 2 1 publish -> lost
    9000 read.break_ - publish -> free
    9000 keys -> none
  ]])

  case("is kept by a writer that reads for a shorter time", [=[
    0 write.acquire W 9000 1 1 publish -> held
    0 read.acquire W 100 1 1 publish -> held
    10 read.acquire W 100 2 1 publish -> held
    20 read.acquire A 1000 1 1 publish -> busy 8980
    30 read.break_ - publish -> free
    40 read.peek W -> held 8960 2 [W 2] [queue [r:A]]
    40 keys -> counts {r:W=2}, frw {r:W=110 w:W=9000}, queue {r:A=1}, signs
      .. {=20:20 r:A=20:1}, until 3020 signs, until 60020 queue, until 9000
      .. counts frw
    50 read.leave A publish -> left
    60 read.acquire A 1000 1 1 publish -> busy 8940
    110 read.acquire A 1000 1 1 publish -> busy 8890
    110 keys -> -counts, frw {-r:W}, signs {=110:20 r:A=110:1}, until 3110
      .. signs, until 60060 queue
    120 read.acquire W 9999 1 1 publish -> held
    130 read.acquire A 1000 1 1 publish -> busy 8870
    140 read.leave A publish -> left
    150 write.break_ 1 publish -> refused a read/write lock has no fencing
      .. tokens
    150 write.break_ - publish -> freed
    150 keys -> -frw, -queue, signs {=130:20 -r:A}, until 3130 signs
  ]=])

  case("keeps the place of a waiter without a heartbeat", [[
    0 write.acquire W 9000 1 1 publish -> held
    10 read.acquire A 1000 1 1 publish -> busy 8990
    20 write.acquire X 1000 1 1 publish -> busy 8980
    30 read.acquire B 1000 1 1 publish -> busy 8970
    40 HDEL rlock_frw_signs:@ w:X r:A -> 2
    50 write.acquire X 1000 1 1 publish -> busy 8950
    60 read.acquire A 1000 1 1 publish -> busy 8940
    60 keys -> frw {w:W=9000}, queue {r:A=1 r:B=3 w:X=2}, signs {=60:10 r:A=60:1
      .. r:B=30:3 w:X=50:2}, writers {w:X=2}, until 3060 signs, until 60050
      .. writers, until 60060 queue, until 9000 frw
    70 DEL rlock_frw_signs:@ -> 1
    80 read.acquire B 1000 1 1 publish -> busy 8920
    80 keys -> signs {=80:80 -r:A r:B=80:3 -w:X}, until 3080 signs, until 60080
      .. queue
    90 write.release W 1000 0 publish -> freed, sent wake:r:A=0 wake:w:X=0
      .. wake:r:B=0
    90 keys -> -frw
  ]])

  case("wakes very many readers, but not all", [[
    0 write.acquire W 9000 1 1 publish -> held
    0 ZADD rlock_frw_queue:@ 1,r:R*1100 -> 1100
    10 write.acquire X 9000 1 1 publish -> busy 8990
    20 write.release W 9000 0 publish -> freed, sent wake:r:R1=0 wake:r:R10=0
      .. wake:r:R100=0 wake:r:R1000=0 wake:r:R1001=0 wake:r:R1002=0
      .. wake:r:R1003=0 and 1001 more
  ]])

  case("renews and releases without a change for others", [[
    0 read.acquire A 1000 1 1 publish -> held
    0 read.acquire A 1000 2 1 publish -> held
    0 read.acquire A 1000 3 1 publish -> held
    0 read.acquire B 9000 1 1 publish -> held
    0 read.acquire B 9000 2 1 publish -> held
    10 read.renew A 300 3 -> held
    10 keys -> counts {r:A=3 r:B=2}, frw {r:A=1000 r:B=9000}, until 9000 counts
      .. frw
    20 read.release A 500 2 publish -> kept
    20 keys -> counts {r:A=2}, frw {r:A=520}
    30 read.release B 2000 1 publish -> kept
    30 keys -> counts {-r:B}, frw {r:B=2030}, until 2030 counts frw
    40 read.release A 3000 1 publish -> kept
    40 keys -> -counts, frw {r:A=3040}, until 3040 frw
  ]])

  case("evicts a dead reader by force", [[
    0 write.acquire W 500 1 1 publish -> held
    10 read.acquire A 1000 1 1 publish -> busy 490
    1209 write.break_ - publish -> free
    1210 write.break_ - publish -> freed
    1210 keys -> signs {=10:10}, until 3010 signs
  ]])

  case("takes a writer that reads out of the queue of readers", [[
    0 write.acquire W 9000 1 1 publish -> held
    0 ZADD rlock_frw_queue:@ 1 r:W -> 1
    10 read.acquire W 9000 1 1 publish -> held
    10 keys -> frw {r:W=9010 w:W=9000}, until 9010 frw
  ]])

  case("admits a try without a message if no waiter was heard", [[
    0 ZADD rlock_frw_queue:@ 1 w:X 2 r:A -> 2
    0 ZADD rlock_frw_writers:@ 1 w:X -> 1
    10 read.acquire B 500 1 0 publish -> held
    10 keys -> frw {r:B=510}, queue {r:A=2 w:X=1}, writers {w:X=1}, until 510
      .. frw
    600 write.acquire B 500 1 0 publish -> held
    600 keys -> frw {-r:B w:B=1100}, until 1100 frw
  ]])

  case("evicts a waiter that was silent for two starts of the queue", [[
    0 write.acquire W 9000 1 1 publish -> held
    10 write.acquire X 1000 1 1 publish -> busy 8990
    20 write.acquire Y 1000 1 1 publish -> busy 8980
    30 write.release W 0 0 publish -> freed, sent wake:w:X=0
    2000 write.acquire Y 1000 1 1 publish -> busy 1200
    2000 keys -> queue {w:X=1 w:Y=2}, signs {=2000:2000 w:X=10:1 w:Y=2000:2},
      .. writers {w:X=1 w:Y=2}, until 5000 signs, until 60020 queue writers
    3300 write.acquire Y 1000 1 1 publish -> held
    3300 keys -> frw {w:Y=4300}, -queue, signs {-w:X -w:Y}, -writers, until 4300
      .. frw
  ]])

  case("evicts a silent writer before readers, and wakes them", [[
    0 read.acquire A 9000 1 1 publish -> held
    10 write.acquire W 1000 1 1 publish -> busy 8990
    20 read.acquire B 1000 1 1 publish -> busy 1190
    30 read.acquire C 1000 1 1 publish -> busy 1180
    600 read.refresh publish B C -> busy 610
    1200 read.refresh publish B C -> busy 10
    1300 read.acquire B 1000 1 1 publish -> held, sent wake:r:C=0
    1300 keys -> frw {r:A=9000 r:B=2300}, queue {r:C=3}, signs {=1200:10
      .. r:C=1200:3}, until 4200 signs, until 60030 queue, until 9000 frw
  ]])

  case("evicts the silent after the server's clock was set back", [[
    3600000 write.acquire A 1000 1 1 publish -> held
    3600010 write.acquire W 1000 1 1 publish -> busy 990
    3600020 read.acquire C 1000 1 1 publish -> busy 980
    3600030 write.release A 1000 0 publish -> freed, sent wake:w:W=0
    1000 read.acquire C 1000 1 1 publish -> busy 1200
    1900 read.acquire C 1000 1 1 publish -> busy 300
    2199 read.acquire C 1000 1 1 publish -> busy 1
    2200 read.acquire C 1000 1 1 publish -> held
    2300 read.acquire C 1000 1 1 publish -> held
  ]])

  case("gives waiters time if the heartbeats are lost", [[
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
  ]])

  case("restores the places of a queue that was deleted", [[
    9500 write.acquire A 9000 1 1 publish -> held
    9510 write.acquire W 1000 1 1 publish -> busy 8990
    9520 read.acquire C 1000 1 1 publish -> busy 8980
    9530 write.acquire X 1000 1 1 publish -> busy 8970
    9540 DEL rlock_frw_queue:@ rlock_frw_writers:@ -> 2
    10100 write.acquire X 1000 1 1 publish -> busy 8400
    10110 read.acquire C 1000 1 1 publish -> busy 8390
    10120 write.acquire W 1000 1 1 publish -> busy 8380
    10120 keys -> frw {w:A=18500}, queue {r:C=2 w:W=1 w:X=3}, signs {=10120:9510
      .. r:C=10110:2 w:W=10120:1 w:X=10100:3}, writers {w:W=1 w:X=3}, until
      .. 13120 signs, until 18500 frw, until 70120 queue writers
  ]])

  case("evicts a writer that is not in the queue of all", [[
    0 read.acquire A 9000 1 1 publish -> held
    10 write.acquire W 1000 1 1 publish -> busy 8990
    20 read.acquire C 1000 1 1 publish -> busy 1190
    30 ZREM rlock_frw_queue:@ w:W -> 1
    600 read.acquire C 1000 1 1 publish -> busy 610
    1200 read.acquire C 1000 1 1 publish -> busy 10
    1300 read.acquire C 1000 1 1 publish -> held
    1300 keys -> frw {r:A=9000 r:C=2300}, signs {=1200:10}, until 4200 signs,
      .. until 9000 frw
  ]])

  case("does not trust a heartbeat that is malformed", [[
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
  ]])
end)

require "spec.rows.leases" ("fair_readwrite", "fair_read_write_lock", describe,
  it)
