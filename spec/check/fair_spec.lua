--- The operations of a fair lock at exact times, on the model of Redis.

local transcript = require "spec.tools.transcript"

local function check(text) transcript.check("fair", text) end

describe("a fair lock", function()
  it("queues waiters, but no single try", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire B 2000 1 5000 publish -> busy 900
      100 keys -> lock {A=1} ttl 900, queue (B) ttl 3605000, timeout
        .. {B=5100} ttl 3605000, alive {=100.00 B=t100+5.p100001} ttl
        .. 3605000
      150 acquire C 2000 1 -1 publish -> busy 850
      155 acquire E 2000 1 1 publish -> busy 845
      157 acquire F 2000 1 1001 publish -> busy 843
      158 acquire G 2000 1 10001 publish -> busy 842
      159 acquire D 2000 1 0 publish -> busy 841
      160 keys -> lock {A=1} ttl 840, queue (B C E F G) ttl 3604940, timeout
        .. {B=5100 C=15100 E=16100 F=18100 G=28100} ttl 3604940, alive
        .. {=158.00 B=t100+5.p100001 C=t150+10.p150002 E=t155+1.p155003
        .. F=t157+2.p157004 G=t158+10.p158005} ttl 3604940
      200 acquire B 2000 1 4900 publish -> busy 800
      300 acquire C 2000 1 4900 publish -> busy 700
      300 keys -> lock {A=1} ttl 700, queue (B C E F G) ttl 3604800, timeout
        .. {B=5200 C=15250 E=16100 F=18100 G=28100} ttl 3604800, alive
        .. {=300.00 B=t200+5.p100001 C=t300+10.p150002 E=t155+1.p155003
        .. F=t157+2.p157004 G=t158+10.p158005} ttl 3604800
      950 acquire B 2000 1 4900 publish -> busy 50
      999 acquire B 2000 1 4900 publish -> busy 1
    ]]
  end)

  it("lets its holder enter again, and shortens no lease", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire A 500 2 -1 publish -> held
      100 keys -> lock {A=2} ttl 900
      200 acquire A 900 3 0 publish -> held
      200 acquire A 901 3 0 publish -> held
      200 keys -> lock {A=3} ttl 901
      200 acquire B 1000 2 0 publish -> lost
      200 acquire A 1000 2 0 publish -> held
      300 release A 700 1 publish -> kept
      300 keys -> lock {A=1} ttl 700
      300 renew A 5000 1 -> held
      300 keys -> lock {A=1} ttl 5000
      300 renew B 5000 1 -> lost
      400 release B 700 0 publish -> lost
      400 release B 700 1 publish -> lost
      400 release A 700 0 publish -> freed
      400 keys -> none
    ]]
  end)

  it("wakes the head when it is free, and moves the others up", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire B 2000 1 5000 publish -> busy 900
      150 acquire C 2000 1 3000 publish -> busy 850
      160 acquire D 2000 1 -1 publish -> busy 840
      500 release A 700 0 publish -> freed, sent channel:B=0
      500 keys -> queue (B C D) ttl 3604600, timeout {B=5100 C=8100 D=18100}
        .. ttl 3604600, alive {=160.00 B=t100+5.p100001 C=t150+3.p150002
        .. D=t160+10.p160003} ttl 3604600
      510 acquire E 2000 1 0 publish -> busy 790
      520 acquire D 2000 1 -1 publish -> busy 780
      530 acquire C 2000 1 2000 publish -> busy 770
      540 acquire B 2000 1 4000 publish -> held
      540 keys -> lock {B=1} ttl 2000, queue (C D) ttl 3604560, timeout
        .. {C=8480 D=13460} ttl 3604560, alive {=530.00 C=t530+3.p150002
        .. D=t520+10.p160003} ttl 3604560
      545 acquire C 2000 1 2000 publish -> busy 1995
      550 release B 700 0 publish -> freed, sent channel:C=0
      551 acquire C 2000 1 2000 publish -> held
      552 release C 700 0 publish -> freed, sent channel:D=0
      553 acquire D 2000 1 2000 publish -> held
      553 keys -> lock {D=1} ttl 2000
      554 release D 700 0 publish -> freed
    ]]
  end)

  it("evicts waiters that are silent, and wakes the next", function()
    check [[
      0 acquire A 3000 1 -1 publish -> held
      100 acquire B 2000 1 5000 publish -> busy 2900
      150 acquire C 2000 1 -1 publish -> busy 2850
      160 acquire D 2000 1 -1 publish -> busy 2840
      600 acquire D 2000 1 -1 publish -> busy 2400
      1000 acquire D 2000 1 -1 publish -> busy 2000
      1299 acquire D 2000 1 -1 publish -> busy 1701
      1299 keys -> lock {A=1} ttl 1701, queue (B C D) ttl 3624641, timeout
        .. {B=5100 C=15100 D=26239} ttl 3624641, alive {=1299.00
        .. B=t100+5.p100001 C=t150+10.p150002 D=t1299+10.p160003} ttl
        .. 3624641
      1300 acquire D 2000 1 -1 publish -> busy 1700
      1300 keys -> lock {A=1} ttl 1700, queue (C D) ttl 3624640, timeout
        .. {C=15100 D=21240} ttl 3624640, alive {=1300.00 C=t150+10.p150002
        .. D=t1300+10.p160003} ttl 3624640
      1320 acquire E 2000 1 -1 publish -> busy 1680
      1349 acquire D 2000 1 -1 publish -> busy 1651
      1350 acquire D 2000 1 -1 publish -> busy 1650
      1350 keys -> lock {A=1} ttl 1650, queue (D E) ttl 3624590, timeout
        .. {D=11350 E=21350} ttl 3624590, alive {=1350.00 D=t1350+10.p160003
        .. E=t1320+10.p1320003} ttl 3624590
      1360 release A 700 0 publish -> freed, sent channel:D=0
      1361 acquire E 2000 1 -1 publish -> busy 1189
      1900 acquire E 2000 1 -1 publish -> busy 650
      2400 acquire E 2000 1 -1 publish -> busy 150
      2549 acquire E 2000 1 -1 publish -> busy 100
      2550 acquire E 2000 1 -1 publish -> held
      2550 keys -> lock {E=1} ttl 2000
    ]]
  end)

  it("evicts no waiter after a silence of all", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      100 acquire B 2000 1 -1 publish -> busy 8900
      200 acquire C 2000 1 -1 publish -> busy 8800
      5000 acquire C 2000 1 -1 publish -> busy 4000
      5000 keys -> lock {A=1} ttl 4000, queue (B C) ttl 3619900, timeout
        .. {B=10100 C=24900} ttl 3619900, alive {=-5000.5000
        .. B=t100+10.p100001 C=t5000+10.p200002} ttl 3619900
      5600 acquire C 2000 1 -1 publish -> busy 3400
      5600 keys -> lock {A=1} ttl 3400, queue (B C) ttl 3619300, timeout
        .. {B=10100 C=25500} ttl 3619300, alive {=-4400.5000
        .. B=t100+10.p100001 C=t5600+10.p200002} ttl 3619300
      6100 acquire C 2000 1 -1 publish -> busy 2900
      6199 acquire C 2000 1 -1 publish -> busy 2801
      6199 keys -> lock {A=1} ttl 2801, queue (B C) ttl 3619801, timeout
        .. {B=10100 C=26099} ttl 3619801, alive {=-3801.5000
        .. B=t100+10.p100001 C=t6199+10.p200002} ttl 3619801
      6200 acquire C 2000 1 -1 publish -> busy 2800
      6200 keys -> lock {A=1} ttl 2800, queue (C) ttl 3619800, timeout
        .. {C=16200} ttl 3619800, alive {=6200.5000 C=t6200+10.p200002} ttl
        .. 3619800
      9000 acquire B 2000 1 -1 publish -> busy 1200
      9000 keys -> queue (C B) ttl 3617200, timeout {B=26200 C=16200} ttl
        .. 3617200, alive {=-1000.9000 B=t9000+10.p9000002
        .. C=t6200+10.p200002} ttl 3617200
      9001 acquire C 2000 1 -1 publish -> held
    ]]
  end)

  it("wakes the next waiter if the head leaves after its grant", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire B 2000 1 -1 publish -> busy 900
      200 acquire C 2000 1 -1 publish -> busy 800
      300 release A 700 0 publish -> freed, sent channel:B=0
      310 acquire B 2000 1 -1 publish -> held
      320 leave B publish -> left, sent channel:C=0
      320 keys -> queue (C) ttl 3609780, timeout {C=10310} ttl 3609780,
        .. alive {=200.00 C=t200+10.p200002} ttl 3609780
      330 acquire C 2000 1 -1 publish -> held
      330 acquire C 2000 2 -1 publish -> held
      340 leave C publish -> left
      340 keys -> lock {C=2} ttl 1990
    ]]
  end)

  it("lets a waiter leave", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire B 2000 1 -1 publish -> busy 900
      200 acquire C 2000 1 4000 publish -> busy 800
      300 acquire D 2000 1 2000 publish -> busy 700
      400 leave B publish -> left
      400 keys -> lock {A=1} ttl 600, queue (C D) ttl 3609700, timeout
        .. {C=14100 D=16100} ttl 3609700, alive {=300.00 C=t200+4.p200002
        .. D=t300+2.p300003} ttl 3609700
      450 leave D publish -> left
      450 keys -> lock {A=1} ttl 550, queue (C) ttl 3609650, timeout
        .. {C=14100} ttl 3609650, alive {=300.00 C=t200+4.p200002} ttl
        .. 3609650
      500 release C 700 0 publish -> lost
      500 keys -> lock {A=1} ttl 500
      500 leave E publish -> left
      600 acquire B 2000 1 -1 publish -> busy 400
      650 acquire C 2000 1 -1 publish -> busy 350
      700 release A 700 0 publish -> freed, sent channel:B=0
      710 leave B publish -> left, sent channel:C=0
      710 keys -> queue (C) ttl 3609890, timeout {C=10710} ttl 3609890,
        .. alive {=650.00 C=t650+10.p650002} ttl 3609890
      720 leave C spublish -> left
      720 keys -> none
    ]]
  end)

  it("says when to retry", function()
    check [[
      0 acquire A 50 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 40
      20 acquire C 2000 1 -1 publish -> busy 100
      49 acquire B 2000 1 -1 publish -> busy 1
      50 acquire C 2000 1 -1 publish -> busy 1199
      51 acquire D 2000 1 0 publish -> busy 1198
      60 acquire C 2000 1 -1 publish -> busy 1189
      70 acquire B 2000 1 -1 publish -> held
      80 PERSIST lock -> 1
      90 acquire C 2000 1 -1 publish -> busy -1
      90 acquire B 2000 1 0 publish -> held
      100 keys -> lock {B=1} ttl 1990, queue (C) ttl 3609910, timeout
        .. {C=10090} ttl 3609910, alive {=90.00 C=t90+10.p20002} ttl 3609910
    ]]
  end)

  it("refreshes several waiters, and names those that must retry", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      100 acquire B 2000 1 5000 publish -> busy 900
      150 acquire C 2000 1 -1 publish -> busy 850
      160 acquire D 2000 1 2000 publish -> busy 840
      500 refresh publish B C D X -> busy 500 X
      500 keys -> lock {A=1} ttl 500, queue (B C D) ttl 3604600, timeout
        .. {B=5500 C=15100 D=17100} ttl 3604600, alive {=500.00
        .. B=t500+5.p100001 C=t500+10.p150002 D=t500+2.p160003} ttl 3604600
      500 refresh publish B C D X -> busy 500 X
      900 refresh publish D C -> busy 100
      900 keys -> lock {A=1} ttl 100, queue (B C D) ttl 3604200, timeout
        .. {B=5500 C=15100 D=17100} ttl 3604200, alive {=900.00
        .. B=t500+5.p100001 C=t900+10.p150002 D=t900+2.p160003} ttl 3604200
      950 release A 700 0 publish -> freed, sent channel:B=0
      960 refresh publish C D -> busy 740, sent channel:B=0
      970 refresh publish B C -> busy 730 B
      975 acquire B 300 1 -1 publish -> held
      1000 refresh both C -> busy 275
      1276 refresh publish D C -> busy 924 C
      1276 keys -> queue (C D) ttl 3610824, timeout {C=11276 D=12100} ttl
        .. 3610824, alive {=1276.00 C=t1276+10.p150002 D=t1276+2.p160003} ttl
        .. 3610824
    ]]
  end)

  it("evicts the silent ahead of waiters that are refreshed", function()
    check [[
      0 acquire A 2000 1 -1 publish -> held
      100 acquire B 2000 1 -1 publish -> busy 1900
      150 acquire C 2000 1 -1 publish -> busy 1850
      160 acquire D 2000 1 -1 publish -> busy 1840
      560 refresh publish D -> busy 1440
      960 refresh publish D -> busy 1040
      1360 refresh publish D -> busy 640
      1360 keys -> lock {A=1} ttl 640, queue (D) ttl 3610000, timeout
        .. {D=11360} ttl 3610000, alive {=1360.00 D=t1360+10.p160003} ttl
        .. 3610000
      2000 refresh publish D -> busy 560 D
      2010 refresh publish E -> busy 1190 E, sent channel:D=0
      2020 keys -> queue (D) ttl 3609980, timeout {D=12000} ttl 3609980,
        .. alive {=2000.00 D=t2000+10.p160003} ttl 3609980
    ]]
  end)

  it("postpones the deadlines of refreshed waiters, and adds none", function()
    check [[
      0 acquire A 60000 1 -1 publish -> held
      100 acquire B 2000 1 -1 publish -> busy 59900
      150 acquire C 2000 1 -1 publish -> busy 59850
      500 refresh publish B C -> busy 59500
      8000 refresh publish B C -> busy 52000
      8000 keys -> lock {A=1} ttl 52000, queue (B C) ttl 3620100, timeout
        .. {B=18000 C=28100} ttl 3620100, alive {=-2000.8000
        .. B=t8000+10.p100001 C=t8000+10.p150002} ttl 3620100
      8100 LREM redisson_lock_queue:@ 1 B -> 1
      8100 ZREM redisson_lock_timeout:@ B -> 1
      8400 refresh publish B C -> busy 51600 B
      8410 acquire B 2000 1 -1 publish -> busy 51590
      8410 keys -> lock {A=1} ttl 51590, queue (B C) ttl 3656590, timeout
        .. {B=48410 C=18400} ttl 3656590, alive {=-1590.8000
        .. B=t8410+40.p100001 C=t8400+10.p150002} ttl 3656590
      8800 PERSIST lock -> 1
      8800 refresh publish C -> busy -1
      8900 release E 700 0 publish -> lost
      8900 refresh publish E -> busy -1 E
    ]]
  end)

  it("shows its holder and its queue", function()
    check [=[
      0 peek A -> free -2 0 [] [queue []]
      0 acquire A 1000 1 -1 publish -> held
      0 peek A -> held 1000 1 [A 1] [queue []]
      100 acquire B 2000 1 -1 publish -> busy 900
      200 acquire C 2000 1 -1 publish -> busy 800
      300 peek A -> held 700 1 [A 1] [queue [B C]]
      300 peek B -> held 700 0 [A 1] [queue [B C]]
    ]=]
  end)
end)

describe("the queue of a fair lock", function()
  it("evicts a Redisson waiter at the head after its deadline", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      100 RPUSH redisson_lock_queue:@ R S -> 2
      100 ZADD redisson_lock_timeout:@ +400 R +900 S -> 2
      200 acquire B 2000 1 -1 publish -> busy 8800
      200 keys -> lock {A=1} ttl 8800, queue (R S B) ttl 3610700, timeout
        .. {B=10900 R=400 S=900} ttl 3610700, alive {=200.00
        .. B=t200+10.p200003} ttl 3610700
      400 acquire B 2000 1 -1 publish -> busy 8600
      400 keys -> lock {A=1} ttl 8600, queue (S B) ttl 3610500, timeout
        .. {B=11100 S=900} ttl 3610500, alive {=400.00 B=t400+10.p200003}
        .. ttl 3610500
      800 RPUSH redisson_lock_queue:@ T -> 3
      800 ZADD redisson_lock_timeout:@ +40000 T -> 1
      899 acquire B 2000 1 -1 publish -> busy 8101
      900 acquire B 2000 1 -1 publish -> busy 8100
      900 keys -> lock {A=1} ttl 8100, queue (B T) ttl 3610000, timeout
        .. {B=10900 T=40000} ttl 3610000, alive {=900.00 B=t900+10.p200003}
        .. ttl 3610000
    ]]
  end)

  it("leaves Redisson waiters the lease when it moves them up", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 2000 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 RPUSH redisson_lock_queue:@ R -> 3
      30 ZADD redisson_lock_timeout:@ +40000 R -> 1
      40 acquire D 2000 1 7000 publish -> busy 8960
      40 keys -> lock {A=1} ttl 8960, queue (B C R D) ttl 3601970, timeout
        .. {B=2010 C=12010 D=47000 R=40000} ttl 3601970, alive {=40.00
        .. B=t10+2.p10001 C=t20+10.p20002 D=t40+7.p40004} ttl 3601970
      50 leave C publish -> left
      50 keys -> lock {A=1} ttl 8950, queue (B R D) ttl 3601960, timeout
        .. {B=2010 D=37000 R=30000} ttl 3601960, alive {=40.00
        .. B=t10+2.p10001 D=t40+7.p40004} ttl 3601960
      60 leave B publish -> left
      60 keys -> lock {A=1} ttl 8940, queue (R D) ttl 3601950, timeout
        .. {D=35000 R=28000} ttl 3601950, alive {=40.00 D=t40+7.p40004} ttl
        .. 3601950
      70 leave D publish -> left
      80 leave D publish -> left
      80 keys -> lock {A=1} ttl 8920, queue (R) ttl 3601930, timeout
        .. {R=28000} ttl 3601930
      100 acquire B 2000 1 1000 publish -> busy 8900
      100 RPUSH redisson_lock_queue:@ S -> 3
      100 ZADD redisson_lock_timeout:@ +100 S -> 1
      110 LREM redisson_lock_queue:@ 1 R -> 1
      110 LPUSH redisson_lock_queue:@ B -> 3
      110 LREM redisson_lock_queue:@ -1 B -> 1
      120 leave B publish -> left
      120 keys -> lock {A=1} ttl 8880, queue (S) ttl 3628880, timeout
        .. {R=28000 S=10000} ttl 3628880
    ]]
  end)

  it("gives a Redisson waiter time when the one ahead goes", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 2000 publish -> busy 8990
      20 RPUSH redisson_lock_queue:@ R -> 2
      20 ZADD redisson_lock_timeout:@ +30 R -> 1
      30 leave B publish -> left
      30 keys -> lock {A=1} ttl 8970, queue (R) ttl 3601980, timeout
        .. {R=11000} ttl 3601980
      9001 acquire C 1000 1 -1 publish -> busy 1999, sent channel:R=0
      9002 RPUSH redisson_lock_queue:@ R -> 3
      9002 ZADD redisson_lock_timeout:@ +20000 R -> 0
      9003 acquire C 1000 1 -1 publish -> busy 10997, sent channel:R=0
      9003 keys -> queue (R C R) ttl 3611997, timeout {C=21002 R=20000} ttl
        .. 3611997, alive {=9003.00 C=t9003+10.p9001002} ttl 3611997, deaf
        .. {=1 R=1} ttl 29998
      9004 release C 1000 0 publish -> lost, sent channel:R=0
      9010 keys -> queue (R R) ttl 3611990, timeout {R=20000} ttl 3611990,
        .. deaf {=1 R=1} ttl 29991
    ]]
  end)

  it("restores the deadline that a Redisson waiter lost", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 RPUSH redisson_lock_queue:@ R -> 1
      20 acquire B 2000 1 -1 publish -> busy 8980
      20 keys -> lock {A=1} ttl 8980, queue (R B) ttl 3623980, timeout
        .. {B=24000 R=14000} ttl 3623980, alive {=20.00 B=t20+10.p20002} ttl
        .. 3623980
      30 release A 9000 0 publish -> freed, sent channel:R=0
      30 ZREM redisson_lock_timeout:@ R -> 1
      40 acquire B 2000 1 -1 publish -> busy 5000, sent channel:R=0
      40 keys -> queue (R B) ttl 3623960, timeout {B=24020 R=5040} ttl
        .. 3623960, alive {=40.00 B=t40+10.p20002} ttl 3623960, deaf {=1
        .. R=1} ttl 30000
    ]]
  end)

  it("restores a queue that was deleted", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 acquire C 2000 1 2000 publish -> busy 8980
      30 acquire D 2000 1 3000 publish -> busy 8970
      40 DEL redisson_lock_queue:@ redisson_lock_timeout:@ -> 2
      50 acquire C 2000 1 2000 publish -> busy 8950
      50 keys -> lock {A=1} ttl 8950, queue (B C D) ttl 3613950, timeout
        .. {B=14000 C=14030 D=14000} ttl 3613950, alive {=50.00
        .. B=t10+10.p10001 C=t50+2.p20002 D=t30+3.p30003} ttl 3613950
      60 acquire D 2000 1 2000 publish -> busy 8940
      60 keys -> lock {A=1} ttl 8940, queue (B C D) ttl 3613940, timeout
        .. {B=14000 C=14030 D=14030} ttl 3613940, alive {=60.00
        .. B=t10+10.p10001 C=t50+2.p20002 D=t60+3.p30003} ttl 3613940
      70 DEL redisson_lock_queue:@ -> 1
      80 release A 9000 0 publish -> freed
      80 keys -> timeout {B=14000 C=14030 D=14030} ttl 3613920, alive
        .. {=60.00 B=t10+10.p10001 C=t50+2.p20002 D=t60+3.p30003} ttl
        .. 3613920
      90 acquire C 2000 1 2000 publish -> busy 1120
      90 keys -> queue (B C D) ttl 3613940, timeout {B=14000 C=14070
        .. D=14030} ttl 3613940, alive {=90.00 B=t10+10.p10001
        .. C=t90+2.p20002 D=t60+3.p30003} ttl 3613940
    ]]
  end)

  it("restores the place of a waiter that was struck off", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 5000 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 acquire D 2000 1 -1 publish -> busy 8970
      40 LREM redisson_lock_queue:@ 1 B -> 1
      40 ZREM redisson_lock_timeout:@ B -> 1
      50 acquire B 2000 1 5000 publish -> busy 8950
      50 keys -> lock {A=1} ttl 8950, queue (B C D) ttl 3624960, timeout
        .. {B=20050 C=15010 D=25010} ttl 3624960, alive {=50.00
        .. B=t50+20.p10001 C=t20+10.p20002 D=t30+10.p30003} ttl 3624960
      60 LREM redisson_lock_queue:@ 1 B -> 1
      60 ZREM redisson_lock_timeout:@ B -> 1
      70 acquire B 2000 1 5000 publish -> busy 8930
      80 LREM redisson_lock_queue:@ 1 B -> 1
      80 ZREM redisson_lock_timeout:@ B -> 1
      90 acquire B 2000 1 5000 publish -> busy 8910
      100 LREM redisson_lock_queue:@ 1 B -> 1
      100 ZREM redisson_lock_timeout:@ B -> 1
      110 acquire B 2000 1 5000 publish -> busy 8890
      120 LREM redisson_lock_queue:@ 1 B -> 1
      120 ZREM redisson_lock_timeout:@ B -> 1
      130 acquire B 2000 1 5000 publish -> busy 8870
      130 keys -> lock {A=1} ttl 8870, queue (B C D) ttl 3624880, timeout
        .. {B=300130 C=15010 D=25010} ttl 3624880, alive {=130.00
        .. B=t130+300.p10001 C=t20+10.p20002 D=t30+10.p30003} ttl 3624880
    ]]
  end)

  it("repairs the queue once a second", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 5000 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 acquire D 2000 1 -1 publish -> busy 8970
      40 LREM redisson_lock_queue:@ 1 C -> 1
      50 acquire D 2000 1 -1 publish -> busy 8950
      50 keys -> lock {A=1} ttl 8950, queue (B D) ttl 3604960, timeout
        .. {B=5010 C=15010 D=25030} ttl 3604960, alive {=50.00
        .. B=t10+5.p10001 C=t20+10.p20002 D=t50+10.p30003} ttl 3604960
      1000 acquire D 2000 1 -1 publish -> busy 8000
      1000 keys -> lock {A=1} ttl 8000, queue (B C D) ttl 3624980, timeout
        .. {B=5010 C=15010 D=25980} ttl 3624980, alive {=-9000.1000
        .. B=t10+5.p10001 C=t20+10.p20002 D=t1000+10.p30003} ttl 3624980
      1010 ZADD redisson_lock_timeout:@ +9999 R -> 1
      1020 acquire C 2000 1 -1 publish -> busy 7980
      1020 acquire B 2000 1 -1 publish -> busy 7980
      1600 acquire C 2000 1 -1 publish -> busy 7400
      1600 acquire B 2000 1 -1 publish -> busy 7400
      2000 acquire D 2000 1 -1 publish -> busy 7000
      2000 keys -> lock {A=1} ttl 7000, queue (B C D R) ttl 3624980, timeout
        .. {B=6600 C=16590 D=26980 R=9999} ttl 3624980, alive {=-8000.1000
        .. B=t1600+5.p10001 C=t1600+10.p20002 D=t2000+10.p30003} ttl 3624980
      2010 RPUSH redisson_lock_queue:@ B -> 5
      2010 ZREM redisson_lock_timeout:@ B -> 1
      2020 acquire C 2000 1 -1 publish -> busy 6980
      2600 acquire C 2000 1 -1 publish -> busy 6400
      2600 acquire B 2000 1 -1 publish -> busy 6400
      3000 acquire D 2000 1 -1 publish -> busy 6000
      3000 keys -> lock {A=1} ttl 6000, queue (B C D R) ttl 3624980, timeout
        .. {B=7600 C=17590 D=27980 R=9999} ttl 3624980, alive {=3000.1000
        .. B=t2600+5.p10001 C=t2600+10.p20002 D=t3000+10.p30003} ttl 3624980
      3010 HSET rlock_fair_alive:@ X 1740800000000000.0999 -> 1
      3010 HSET rlock_fair_alive:@ Y 17408000030720002.01700000003000 -> 1
      3500 acquire D 2000 1 -1 publish -> busy 5500
      4000 acquire D 2000 1 -1 publish -> busy 5000
      4000 keys -> lock {A=1} ttl 5000, queue (D R) ttl 3610000, timeout
        .. {D=14000 R=9999} ttl 3610000, alive {=4000.1000
        .. D=t4000+10.p30003} ttl 3610000
    ]]
  end)

  it("probes Redisson waiters that hear nothing, twice", function()
    check [[
      0 RPUSH redisson_lock_queue:@ R S -> 2
      0 ZADD redisson_lock_timeout:@ +90000 R +95000 S -> 2
      0 listen S 1
      0 acquire B 2000 1 -1 publish -> busy 90000, sent channel:R=0
      0 keys -> queue (R S B) ttl 3705000, timeout {B=105000 R=90000
        .. S=95000} ttl 3705000, alive {=0.00 B=t0+10.p3} ttl 3705000, deaf
        .. {=1 R=1} ttl 30000
      500 acquire B 2000 1 -1 publish -> busy 89500, sent channel:R=0
      1000 acquire B 2000 1 -1 publish -> busy 89000, sent channel:R=0
      1500 acquire B 2000 1 -1 publish -> busy 88500, sent channel:R=0
      1999 acquire B 2000 1 -1 publish -> busy 88001, sent channel:R=0
      2000 acquire B 2000 1 -1 publish -> busy 93000, sent channel:R=0
        .. channel:S=0
      2000 keys -> queue (S B) ttl 3705000, timeout {B=107000 S=95000} ttl
        .. 3705000, alive {=2000.00 B=t2000+10.p3} ttl 3705000
      2100 listen S 0
      2500 acquire B 2000 1 -1 publish -> busy 92500, sent channel:S=0
      2500 keys -> queue (S B) ttl 3704500, timeout {B=107500 S=95000} ttl
        .. 3704500, alive {=2500.00 B=t2500+10.p3} ttl 3704500, deaf {=1
        .. S=1} ttl 30000
      3000 acquire B 2000 1 -1 publish -> busy 92000, sent channel:S=0
      4000 acquire B 2000 1 -1 publish -> busy 91000, sent channel:S=0
      4400 acquire B 2000 1 -1 publish -> busy 90600, sent channel:S=0
      4500 acquire B 2000 1 -1 publish -> held, sent channel:S=0
      4500 keys -> lock {B=1} ttl 2000
    ]]
  end)

  it("wakes a Redisson waiter, and does not probe one that hears", function()
    check [[
      0 RPUSH redisson_lock_queue:@ R -> 1
      0 ZADD redisson_lock_timeout:@ +90000 R -> 1
      0 listen R 1
      10 acquire B 2000 1 0 publish -> busy 89990, sent channel:R=0
      20 acquire B 2000 1 -1 spublish -> busy 89980, sent channel:R=0
      20 keys -> queue (R B) ttl 3699980, timeout {B=100000 R=90000} ttl
        .. 3699980, alive {=20.00 B=t20+10.p20002} ttl 3699980, deaf {=1}
        .. ttl 30000
      30 acquire A 100 1 -1 publish -> busy 89970, sent channel:R=0
      40 break_ - publish -> free, sent channel:R=0
      40 keys -> queue (R B A) ttl 3699960, timeout {A=110000 B=100000
        .. R=90000} ttl 3699960, alive {=30.00 A=t30+10.p30003
        .. B=t20+10.p20002} ttl 3699960, deaf {=1} ttl 29980
      50 listen R 0
      60 break_ - publish -> freed, sent channel:R=0 channel:B=0
      60 keys -> queue (B A) ttl 3709940, timeout {A=110000 B=100000} ttl
        .. 3709940, alive {=30.00 A=t30+10.p30003 B=t20+10.p20002} ttl
        .. 3709940, deaf {=1} ttl 29960
    ]]
  end)

  it("breaks a lock that is held", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 break_ - publish -> freed, sent channel:B=0
      20 keys -> queue (B) ttl 3609990, timeout {B=10010} ttl 3609990, alive
        .. {=10.00 B=t10+10.p10001} ttl 3609990
      30 break_ - publish -> free
      1209 break_ - publish -> free
      1210 break_ - publish -> freed
      1210 keys -> alive {=10.00} ttl 3608800
      1220 break_ - publish -> free
      1230 break_ - both -> free
    ]]
  end)

  it("deletes stale entries", function()
    check [[
      0 HSET rlock_fair_alive:@ - 1740800000000000.00 X 1740800000000010.01
        .. -> 2
      10 acquire A 9000 1 -1 publish -> busy 1200
      10 keys -> queue (X A) ttl 3605000, timeout {A=15010 X=5010} ttl
        .. 3605000, alive {=-9990.10 A=t10+10.p10002 X=t0+10.01} ttl 3605000
      20 release A 9000 0 publish -> lost, sent channel:X=0
      2000 acquire A 9000 1 0 publish -> held
      2000 keys -> lock {A=1} ttl 9000
      2010 release A 9000 0 publish -> freed
      2020 acquire B 9000 1 -1 publish -> held
      2020 keys -> lock {B=1} ttl 9000
      2030 DEL lock -> 1
      2040 release B 9000 0 publish -> lost
    ]]
  end)

  it("leaves the rest of very many dead waiters for later", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      0 RPUSH redisson_lock_queue:@ W*450 -> 450
      0 ZADD redisson_lock_timeout:@ 1,W*450 -> 450
      10 acquire B 2000 1 -1 publish -> busy 8990
      10 LLEN redisson_lock_queue:@ -> 150
      10 LINDEX redisson_lock_queue:@ 0 -> W302
      20 release A 2000 0 publish -> freed, sent channel:B=0
      20 LLEN redisson_lock_queue:@ -> 1
    ]]
  end)

  it("retries soon after it has evicted as many as it may", function()
    check [[
      0 RPUSH redisson_lock_queue:@ W*401 -> 401
      0 ZADD redisson_lock_timeout:@ 1,W*401 -> 401
      10 acquire B 2000 1 -1 publish -> busy 5, sent channel:W302=0
      10 LLEN redisson_lock_queue:@ -> 101
      20 acquire B 2000 1 -1 publish -> held
      20 LLEN redisson_lock_queue:@ -> 0
    ]]
  end)
end)

describe("a fair lock with odd queues", function()
  it("moves up those behind two dead waiters", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 2000 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 RPUSH redisson_lock_queue:@ R S T -> 5
      30 ZADD redisson_lock_timeout:@ +5000 R +30000 S +33000 T -> 3
      40 acquire D 2000 1 -1 publish -> busy 8960
      600 acquire D 2000 1 -1 publish -> busy 8400
      1100 acquire D 2000 1 -1 publish -> busy 7900
      1220 acquire D 2000 1 -1 publish -> busy 7780
      1220 keys -> lock {A=1} ttl 7780, queue (R S T D) ttl 3642840, timeout
        .. {D=32180 R=15000 S=21000 T=27000} ttl 3642840, alive {=1220.00
        .. D=t1220+10.p40006} ttl 3642840
      1300 release A 2000 0 publish -> freed, sent channel:R=0
      1310 acquire E 2000 1 -1 publish -> busy 13690, sent channel:R=0
      1310 keys -> queue (R S T D E) ttl 3642750, timeout {D=32180 E=42180
        .. R=15000 S=21000 T=27000} ttl 3642750, alive {=1310.00
        .. D=t1220+10.p40006 E=t1310+10.p1310005} ttl 3642750, deaf {=1 R=1
        .. S=1 T=1} ttl 30000
    ]]
  end)

  it("bounds the deadline of the last", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 ZADD redisson_lock_timeout:@ +9000000 C -> 0
      40 leave B publish -> left
      40 keys -> lock {A=1} ttl 8960, queue (C) ttl 3609970, timeout
        .. {C=300040} ttl 3609970, alive {=20.00 C=t20+10.p20002} ttl
        .. 3609970
      50 acquire B 2000 1 -1 publish -> busy 8950
      60 acquire D 2000 1 -1 publish -> busy 8940
      70 ZADD redisson_lock_timeout:@ +9000000 D -> 0
      80 leave B publish -> left
      80 keys -> lock {A=1} ttl 8920, queue (C D) ttl 3609930, timeout
        .. {C=300040 D=600080} ttl 3609930, alive {=60.00 C=t20+10.p20002
        .. D=t60+10.p60003} ttl 3609930
      90 leave C publish -> left
      90 leave D publish -> left
      90 keys -> lock {A=1} ttl 8910
    ]]
  end)

  it("removes a waiter that is listed twice from its first place", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      20 acquire D 2000 1 -1 publish -> busy 8980
      30 RPUSH redisson_lock_queue:@ B -> 4
      40 leave B publish -> left
      40 keys -> lock {A=1} ttl 8960, queue (C D B) ttl 3609970, timeout
        .. {C=10040 D=20040} ttl 3609970, alive {=20.00 C=t20+10.p20002
        .. D=t20+10.p20003} ttl 3609970
      50 leave B publish -> left
      50 keys -> lock {A=1} ttl 8950, queue (C D) ttl 3609960, timeout
        .. {C=10040 D=20040} ttl 3609960, alive {=20.00 C=t20+10.p20002
        .. D=t20+10.p20003} ttl 3609960
      60 RPUSH redisson_lock_queue:@ C -> 3
      70 leave C publish -> left
      70 keys -> lock {A=1} ttl 8930, queue (D C) ttl 3609940, timeout
        .. {D=10070} ttl 3609940, alive {=20.00 D=t20+10.p20003} ttl 3609940
    ]]
  end)

  it("reads what older versions write", function()
    check [[
      0 RPUSH redisson_lock_queue:@ X Y -> 2
      0 ZADD redisson_lock_timeout:@ +10000 X +20000 Y -> 2
      0 HSET rlock_fair_alive:@ - 1740800000000000 X 1740800000000010 Y
        .. 1740800000000522 -> 3
      100 acquire B 2000 1 -1 publish -> busy 1200
      100 keys -> queue (X Y B) ttl 3629900, timeout {B=30000 X=10000
        .. Y=20000} ttl 3629900, alive {=-9900.100 B=t100+10.p100003 X=t0+10
        .. Y=t0+522} ttl 3629900
      640 acquire B 2000 1 -1 publish -> busy 660
      1200 acquire B 2000 1 -1 publish -> busy 100
      1200 keys -> queue (X Y B) ttl 3629900, timeout {B=31100 X=10000
        .. Y=20000} ttl 3629900, alive {=-8800.100 B=t1200+10.p100003
        .. X=t0+10 Y=t0+522} ttl 3629900
    ]]
  end)

  it("evicts the dead before a try", function()
    check [[
      0 acquire A 500 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 490
      20 acquire C 2000 1 -1 publish -> busy 480
      600 acquire C 2000 1 -1 publish -> busy 610
      1100 acquire C 2000 1 -1 publish -> busy 110
      1210 acquire D 2000 1 0 publish -> busy 1090, sent channel:C=0
      1210 keys -> queue (C) ttl 3619880, timeout {C=11210} ttl 3619880,
        .. alive {=1100.00 C=t1100+10.p20002} ttl 3619880
      1300 leave C publish -> left
      1310 acquire D 2000 1 0 publish -> held
      1310 keys -> lock {D=1} ttl 2000
    ]]
  end)

  it("asks for subscribers of both sorts", function()
    check [[
      0 RPUSH redisson_lock_queue:@ R S -> 2
      0 ZADD redisson_lock_timeout:@ +90000 R +95000 S -> 2
      0 HSET rlock_fair_deaf:@ R 1 S 1 -> 2
      0 PEXPIRE rlock_fair_deaf:@ 28011 -> 1
      10 acquire B 2000 1 -1 both -> busy 89990, sent channel:R=0
        .. channel:R=0
      10 keys -> queue (R S B) ttl 3704990, timeout {B=105000 R=90000
        .. S=95000} ttl 3704990, alive {=10.00 B=t10+10.p10003} ttl 3704990,
        .. deaf {R=1 S=1} ttl 28001
      11 acquire B 2000 1 -1 both -> held, sent channel:R=0 channel:R=0
      11 keys -> lock {B=1} ttl 2000
    ]]
  end)

  it("keeps the order of arrival, whatever the names are", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire Z 2000 1 2000 publish -> busy 8990
      20 acquire Y 2000 1 2000 publish -> busy 8980
      30 acquire X 2000 1 2000 publish -> busy 8970
      40 acquire W 2000 1 2000 publish -> busy 8960
      50 DEL redisson_lock_queue:@ -> 1
      60 acquire X 2000 1 2000 publish -> busy 8940
      60 keys -> lock {A=1} ttl 8940, queue (Z Y X W) ttl 3607950, timeout
        .. {W=8010 X=6040 Y=4010 Z=2010} ttl 3607950, alive {=60.00
        .. W=t40+2.p40004 X=t60+2.p30003 Y=t20+2.p20002 Z=t10+2.p10001} ttl
        .. 3607950
      70 DEL redisson_lock_queue:@ -> 1
      80 RPUSH redisson_lock_queue:@ R Z -> 2
      80 ZADD redisson_lock_timeout:@ +9000 R -> 1
      80 HSET rlock_fair_alive:@ V 1740800000081922 -> 1
      1000 acquire W 2000 1 2000 publish -> busy 8000
      1000 keys -> lock {A=1} ttl 8000, queue (V R Z Y X W) ttl 3613000,
        .. timeout {R=9000 V=14000 W=8970 X=6040 Y=4010 Z=2010} ttl 3613000,
        .. alive {=-9000.1000 V=t80+2 W=t1000+2.p40004 X=t60+2.p30003
        .. Y=t20+2.p20002 Z=t10+2.p10001} ttl 3613000
      1010 LREM redisson_lock_queue:@ 1 Z -> 1
      1010 LREM redisson_lock_queue:@ 1 X -> 1
      1300 acquire Z 2000 1 2000 publish -> busy 7700
      1300 acquire X 2000 1 2000 publish -> busy 7700
      2000 acquire W 2000 1 2000 publish -> busy 7000
      2000 keys -> lock {A=1} ttl 7000, queue (Z V R Y X W) ttl 3612000,
        .. timeout {R=9000 V=14000 W=9970 X=7280 Y=4010 Z=3300} ttl 3612000,
        .. alive {=-8000.1000 V=t80+2 W=t2000+2.p40004 X=t1300+2.p30003
        .. Y=t20+2.p20002 Z=t1300+2.p10001} ttl 3612000
    ]]
  end)

  it("evicts no live waiter", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 release B 700 1 publish -> lost
      20 release C 700 0 publish -> lost
      20 keys -> lock {A=1} ttl 8980, queue (B) ttl 3609990, timeout
        .. {B=10010} ttl 3609990, alive {=10.00 B=t10+10.p10001} ttl 3609990
      30 ZADD redisson_lock_timeout:@ +500 X -> 1
      40 leave X publish -> left
      40 keys -> lock {A=1} ttl 8960, queue (B) ttl 3609970, timeout
        .. {B=10010} ttl 3609970, alive {=10.00 B=t10+10.p10001} ttl 3609970
      50 HSET rlock_fair_alive:@ V 1740800000051200.01 -> 1
      60 leave V publish -> left
      60 keys -> lock {A=1} ttl 8940, queue (B) ttl 3609950, timeout
        .. {B=10010} ttl 3609950, alive {=10.00 B=t10+10.p10001} ttl 3609950
      70 release B 700 0 publish -> lost
      70 keys -> lock {A=1} ttl 8930
      80 release A 700 0 publish -> freed
      90 RPUSH redisson_lock_queue:@ R -> 1
      90 release B 700 0 publish -> lost, sent channel:R=0
      90 release B 700 2 publish -> lost
      100 DEL redisson_lock_queue:@ -> 1
      100 HSET rlock_fair_alive:@ V 1740800000051200.01 -> 1
      110 release V 700 0 publish -> lost
      110 keys -> timeout {R=5090} ttl 3604980
    ]]
  end)

  it("proposes no deadline that has passed", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 RPUSH redisson_lock_queue:@ R -> 1
      20 acquire B 2000 1 2000 publish -> busy 8980
      20 keys -> lock {A=1} ttl 8980, queue (R B) ttl 3615980, timeout
        .. {B=16000 R=14000} ttl 3615980, alive {=20.00 B=t20+2.p20002} ttl
        .. 3615980
      30 leave B publish -> left
      40 ZADD redisson_lock_timeout:@ +100 R -> 0
      5000 acquire B 2000 1 2000 publish -> busy 4000
      5000 keys -> lock {A=1} ttl 4000, queue (B) ttl 3602000, timeout
        .. {B=7000} ttl 3602000, alive {=5000.00 B=t5000+2.p5000001} ttl
        .. 3602000
    ]]
  end)

  it("gives a queue without an expiry one", function()
    check [[
      0 RPUSH redisson_lock_queue:@ R -> 1
      10 acquire B 2000 1 0 publish -> busy 5000, sent channel:R=0
      10 keys -> queue (R) ttl 3605000, timeout {R=5010} ttl 3605000, deaf
        .. {=1 R=1} ttl 30000
    ]]
  end)

  it("counts the shares of its own dead waiters only", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 4000 publish -> busy 8990
      20 RPUSH redisson_lock_queue:@ R S -> 3
      20 ZADD redisson_lock_timeout:@ +1000 R +14000 S -> 2
      30 acquire D 2000 1 -1 publish -> busy 8970
      600 acquire D 2000 1 -1 publish -> busy 8400
      1100 acquire D 2000 1 -1 publish -> busy 7900
      1210 acquire D 2000 1 -1 publish -> busy 7790
      1210 keys -> lock {A=1} ttl 7790, queue (S D) ttl 3623860, timeout
        .. {D=21180 S=13000} ttl 3623860, alive {=1210.00 D=t1210+10.p30004}
        .. ttl 3623860
    ]]
  end)

  it("admits a try after two long silences", function()
    check [[
      0 acquire A 1000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 990
      20 release A 700 0 publish -> freed, sent channel:B=0
      60000 acquire X 2000 1 0 publish -> busy 1200
      120000 acquire X 2000 1 0 publish -> held
      120000 keys -> lock {X=1} ttl 2000
    ]]
  end)

  it("evicts the silent after the server's clock was set back", function()
    check [[
      3600000 acquire A 1000 1 -1 publish -> held
      3600010 acquire B 2000 1 -1 publish -> busy 990
      3600020 acquire C 2000 1 -1 publish -> busy 980
      3600030 release A 700 0 publish -> freed, sent channel:B=0
      1000 acquire C 2000 1 -1 publish -> busy 1200
      1900 acquire C 2000 1 -1 publish -> busy 300
      2199 acquire C 2000 1 -1 publish -> busy 100
      2200 acquire C 2000 1 -1 publish -> held
    ]]
  end)

  it("keeps the order without the heartbeats", function()
    check [[
      0 acquire A 9000 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 8990
      20 acquire C 2000 1 -1 publish -> busy 8980
      30 DEL rlock_fair_alive:@ -> 1
      40 acquire C 2000 1 -1 publish -> busy 8960
      50 release A 700 0 publish -> freed, sent channel:B=0
      60 acquire C 2000 1 -1 publish -> busy 9950, sent channel:B=0
      70 acquire B 2000 1 -1 publish -> held
      80 release B 700 0 publish -> freed, sent channel:C=0
      90 acquire C 2000 1 -1 publish -> held
    ]]
  end)

  it("evicts the dead head by a release", function()
    check [[
      0 acquire A 1300 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 1290
      20 acquire C 2000 1 -1 publish -> busy 1280
      30 acquire D 2000 1 -1 publish -> busy 1270
      600 refresh publish C D -> busy 700
      1200 refresh publish C D -> busy 100
      1230 release A 700 0 publish -> freed, sent channel:C=0
      1230 keys -> queue (C D) ttl 3628780, timeout {C=20010 D=21230} ttl
        .. 3628780, alive {=1200.00 C=t1200+10.p20002 D=t1200+10.p30003} ttl
        .. 3628780
    ]]
  end)

  it("evicts the dead head by force", function()
    check [[
      0 acquire A 1300 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 1290
      20 acquire C 2000 1 -1 publish -> busy 1280
      30 acquire D 2000 1 -1 publish -> busy 1270
      600 refresh publish C D -> busy 700
      1200 refresh publish C D -> busy 100
      1230 break_ X publish -> freed, sent channel:C=0
      1230 keys -> queue (C D) ttl 3628780, timeout {C=20010 D=21230} ttl
        .. 3628780, alive {=1200.00 C=t1200+10.p20002 D=t1200+10.p30003} ttl
        .. 3628780
    ]]
  end)

  it("evicts the dead head by a waiter that leaves", function()
    check [[
      0 acquire A 1300 1 -1 publish -> held
      10 acquire B 2000 1 -1 publish -> busy 1290
      20 acquire C 2000 1 -1 publish -> busy 1280
      30 acquire D 2000 1 -1 publish -> busy 1270
      600 refresh publish C D -> busy 700
      1200 refresh publish C D -> busy 100
      1230 leave D publish -> left
      1230 keys -> lock {A=1} ttl 70, queue (B C) ttl 3628780, timeout {B=10010
        .. C=20010} ttl 3628780, alive {=1200.00 B=t10+10.p10001
        .. C=t1200+10.p20002} ttl 3628780
    ]]
  end)
end)
