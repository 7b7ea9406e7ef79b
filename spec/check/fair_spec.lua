--- The operations of a fair lock at exact times, on the model of Redis.

local transcript = require "spec.tools.transcript"

local case = transcript.tests(it, "fair")

describe("a fair lock", function()
  case("queues waiters, but no single try", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire B 2000 1 5000 publish -> busy 900
    100 keys -> alive {=100.00 B=t100+5.p100001}, lock {A=1}, queue (B), timeout
      .. {B=5100}, until 1000 lock, until 3605100 alive queue timeout
    150 acquire C 2000 1 -1 publish -> busy 850
    155 acquire E 2000 1 1 publish -> busy 845
    157 acquire F 2000 1 1001 publish -> busy 843
    158 acquire G 2000 1 10001 publish -> busy 842
    159 acquire D 2000 1 0 publish -> busy 841
    160 keys -> alive {=158.00 C=t150+10.p150002 E=t155+1.p155003
      .. F=t157+2.p157004 G=t158+10.p158005}, queue (B C E F G), timeout
      .. {C=15100 E=16100 F=18100 G=28100}
    200 acquire B 2000 1 4900 publish -> busy 800
    300 acquire C 2000 1 4900 publish -> busy 700
    300 keys -> alive {=300.00 B=t200+5.p100001 C=t300+10.p150002}, timeout
      .. {B=5200 C=15250}
    950 acquire B 2000 1 4900 publish -> busy 50
    999 acquire B 2000 1 4900 publish -> busy 1
  ]])

  case("lets its holder enter again, and shortens no lease", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire A 500 2 -1 publish -> held
    100 keys -> lock {A=2}, until 1000 lock
    200 acquire A 900 3 0 publish -> held
    200 acquire A 901 3 0 publish -> held
    200 keys -> lock {A=3}, until 1101 lock
    200 acquire B 1000 2 0 publish -> lost
    200 acquire A 1000 2 0 publish -> held
    300 release A 700 1 publish -> kept
    300 keys -> lock {A=1}, until 1000 lock
    300 renew A 5000 1 -> held
    300 keys -> until 5300 lock
    300 renew B 5000 1 -> lost
    400 release B 700 0 publish -> lost
    400 release B 700 1 publish -> lost
    400 release A 700 0 publish -> freed
    400 keys -> none
  ]])

  case("wakes the head when it is free, and moves the others up", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire B 2000 1 5000 publish -> busy 900
    150 acquire C 2000 1 3000 publish -> busy 850
    160 acquire D 2000 1 -1 publish -> busy 840
    500 release A 700 0 publish -> freed, sent channel:B=0
    500 keys -> alive {=160.00 B=t100+5.p100001 C=t150+3.p150002
      .. D=t160+10.p160003}, queue (B C D), timeout {B=5100 C=8100 D=18100},
      .. until 3605100 alive queue timeout
    510 acquire E 2000 1 0 publish -> busy 790
    520 acquire D 2000 1 -1 publish -> busy 780
    530 acquire C 2000 1 2000 publish -> busy 770
    540 acquire B 2000 1 4000 publish -> held
    540 keys -> alive {=530.00 -B C=t530+3.p150002 D=t520+10.p160003}, lock
      .. {B=1}, queue (C D), timeout {-B C=8480 D=13460}, until 2540 lock
    545 acquire C 2000 1 2000 publish -> busy 1995
    550 release B 700 0 publish -> freed, sent channel:C=0
    551 acquire C 2000 1 2000 publish -> held
    552 release C 700 0 publish -> freed, sent channel:D=0
    553 acquire D 2000 1 2000 publish -> held
    553 keys -> -alive, lock {-B D=1}, -queue, -timeout, until 2553 lock
    554 release D 700 0 publish -> freed
  ]])

  case("evicts waiters that are silent, and wakes the next", [[
    0 acquire A 3000 1 -1 publish -> held
    100 acquire B 2000 1 5000 publish -> busy 2900
    150 acquire C 2000 1 -1 publish -> busy 2850
    160 acquire D 2000 1 -1 publish -> busy 2840
    600 acquire D 2000 1 -1 publish -> busy 2400
    1000 acquire D 2000 1 -1 publish -> busy 2000
    1299 acquire D 2000 1 -1 publish -> busy 1701
    1299 keys -> alive {=1299.00 B=t100+5.p100001 C=t150+10.p150002
      .. D=t1299+10.p160003}, lock {A=1}, queue (B C D), timeout {B=5100 C=15100
      .. D=26239}, until 3000 lock, until 3625940 alive queue timeout
    1300 acquire D 2000 1 -1 publish -> busy 1700
    1300 keys -> alive {=1300.00 -B D=t1300+10.p160003}, queue (C D), timeout
      .. {-B D=21240}
    1320 acquire E 2000 1 -1 publish -> busy 1680
    1349 acquire D 2000 1 -1 publish -> busy 1651
    1350 acquire D 2000 1 -1 publish -> busy 1650
    1350 keys -> alive {=1350.00 -C D=t1350+10.p160003 E=t1320+10.p1320003},
      .. queue (D E), timeout {-C D=11350 E=21350}
    1360 release A 700 0 publish -> freed, sent channel:D=0
    1361 acquire E 2000 1 -1 publish -> busy 1189
    1900 acquire E 2000 1 -1 publish -> busy 650
    2400 acquire E 2000 1 -1 publish -> busy 150
    2549 acquire E 2000 1 -1 publish -> busy 100
    2550 acquire E 2000 1 -1 publish -> held
    2550 keys -> -alive, lock {-A E=1}, -queue, -timeout, until 4550 lock
  ]])

  case("evicts no waiter after a silence of all", [[
    0 acquire A 9000 1 -1 publish -> held
    100 acquire B 2000 1 -1 publish -> busy 8900
    200 acquire C 2000 1 -1 publish -> busy 8800
    5000 acquire C 2000 1 -1 publish -> busy 4000
    5000 keys -> alive {=-5000.5000 B=t100+10.p100001 C=t5000+10.p200002}, lock
      .. {A=1}, queue (B C), timeout {B=10100 C=24900}, until 3624900 alive
      .. queue timeout, until 9000 lock
    5600 acquire C 2000 1 -1 publish -> busy 3400
    5600 keys -> alive {=-4400.5000 C=t5600+10.p200002}, timeout {C=25500}
    6100 acquire C 2000 1 -1 publish -> busy 2900
    6199 acquire C 2000 1 -1 publish -> busy 2801
    6199 keys -> alive {=-3801.5000 C=t6199+10.p200002}, timeout {C=26099},
      .. until 3626000 alive queue timeout
    6200 acquire C 2000 1 -1 publish -> busy 2800
    6200 keys -> alive {=6200.5000 -B C=t6200+10.p200002}, queue (C), timeout
      .. {-B C=16200}
    9000 acquire B 2000 1 -1 publish -> busy 1200
    9000 keys -> alive {=-1000.9000 B=t9000+10.p9000002}, -lock, queue (C B),
      .. timeout {B=26200}, until 3626200 alive queue timeout
    9001 acquire C 2000 1 -1 publish -> held
  ]])

  case("leaves a hold alone if its owner leaves the queue late", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire B 2000 1 -1 publish -> busy 900
    200 acquire C 2000 1 -1 publish -> busy 800
    300 release A 700 0 publish -> freed, sent channel:B=0
    310 acquire B 2000 1 -1 publish -> held
    320 leave B publish -> left
    320 keys -> alive {=200.00 C=t200+10.p200002}, lock {B=1}, queue (C),
      .. timeout {C=10310}, until 2310 lock, until 3610100 alive queue timeout
  ]])

  case("lets a waiter leave", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire B 2000 1 -1 publish -> busy 900
    200 acquire C 2000 1 4000 publish -> busy 800
    300 acquire D 2000 1 2000 publish -> busy 700
    400 leave B publish -> left
    400 keys -> alive {=300.00 C=t200+4.p200002 D=t300+2.p300003}, lock {A=1},
      .. queue (C D), timeout {C=14100 D=16100}, until 1000 lock, until 3610100
      .. alive queue timeout
    450 leave D publish -> left
    450 keys -> alive {-D}, queue (C), timeout {-D}
    500 release C 700 0 publish -> lost
    500 keys -> -alive, -queue, -timeout
    500 leave E publish -> left
    600 acquire B 2000 1 -1 publish -> busy 400
    650 acquire C 2000 1 -1 publish -> busy 350
    700 release A 700 0 publish -> freed, sent channel:B=0
    710 leave B publish -> left, sent channel:C=0
    710 keys -> alive {=650.00 C=t650+10.p650002}, -lock, queue (C), timeout
      .. {C=10710}, until 3610600 alive queue timeout
    720 leave C spublish -> left
    720 keys -> none
  ]])

  case("says when to retry", [[
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
    100 keys -> alive {=90.00 C=t90+10.p20002}, lock {B=1}, queue (C), timeout
      .. {C=10090}, until 2090 lock, until 3610010 alive queue timeout
  ]])

  case("refreshes several waiters, and names those that must retry", [[
    0 acquire A 1000 1 -1 publish -> held
    100 acquire B 2000 1 5000 publish -> busy 900
    150 acquire C 2000 1 -1 publish -> busy 850
    160 acquire D 2000 1 2000 publish -> busy 840
    500 refresh publish B C D X -> busy 500 X
    500 keys -> alive {=500.00 B=t500+5.p100001 C=t500+10.p150002
      .. D=t500+2.p160003}, lock {A=1}, queue (B C D), timeout {B=5500 C=15100
      .. D=17100}, until 1000 lock, until 3605100 alive queue timeout
    500 refresh publish B C D X -> busy 500 X
    900 refresh publish D C -> busy 100
    900 keys -> alive {=900.00 C=t900+10.p150002 D=t900+2.p160003}
    950 release A 700 0 publish -> freed, sent channel:B=0
    960 refresh publish C D -> busy 740, sent channel:B=0
    970 refresh publish B C -> busy 730 B
    975 acquire B 300 1 -1 publish -> held
    1000 refresh both C -> busy 275
    1276 refresh publish D C -> busy 924 C
    1276 keys -> alive {=1276.00 -B C=t1276+10.p150002 D=t1276+2.p160003},
      .. -lock, queue (C D), timeout {-B C=11276 D=12100}, until 3612100 alive
      .. queue timeout
  ]])

  case("evicts the silent ahead of waiters that are refreshed", [[
    0 acquire A 2000 1 -1 publish -> held
    100 acquire B 2000 1 -1 publish -> busy 1900
    150 acquire C 2000 1 -1 publish -> busy 1850
    160 acquire D 2000 1 -1 publish -> busy 1840
    560 refresh publish D -> busy 1440
    960 refresh publish D -> busy 1040
    1360 refresh publish D -> busy 640
    1360 keys -> alive {=1360.00 D=t1360+10.p160003}, lock {A=1}, queue (D),
      .. timeout {D=11360}, until 2000 lock, until 3611360 alive queue timeout
    2000 refresh publish D -> busy 560 D
    2010 refresh publish E -> busy 1190 E, sent channel:D=0
    2020 keys -> alive {=2000.00 D=t2000+10.p160003}, -lock, timeout {D=12000},
      .. until 3612000 alive queue timeout
  ]])

  case("postpones the deadlines of refreshed waiters, and adds none", [[
    0 acquire A 60000 1 -1 publish -> held
    100 acquire B 2000 1 -1 publish -> busy 59900
    150 acquire C 2000 1 -1 publish -> busy 59850
    500 refresh publish B C -> busy 59500
    8000 refresh publish B C -> busy 52000
    8000 keys -> alive {=-2000.8000 B=t8000+10.p100001 C=t8000+10.p150002}, lock
      .. {A=1}, queue (B C), timeout {B=18000 C=28100}, until 3628100 alive
      .. queue timeout, until 60000 lock
    8100 LREM redisson_lock_queue:@ 1 B -> 1
    8100 ZREM redisson_lock_timeout:@ B -> 1
    8400 refresh publish B C -> busy 51600 B
    8410 acquire B 2000 1 -1 publish -> busy 51590
    8410 keys -> alive {=-1590.8000 B=t8410+40.p100001 C=t8400+10.p150002},
      .. timeout {B=48410 C=18400}, until 3665000 alive queue timeout
    8800 PERSIST lock -> 1
    8800 refresh publish C -> busy -1
    8900 release E 700 0 publish -> lost
    8900 refresh publish E -> busy -1 E
  ]])

  case("shows its holder and its queue", [=[
    0 peek A -> free -2 0 [] [queue []]
    0 acquire A 1000 1 -1 publish -> held
    0 peek A -> held 1000 1 [A 1] [queue []]
    100 acquire B 2000 1 -1 publish -> busy 900
    200 acquire C 2000 1 -1 publish -> busy 800
    300 peek A -> held 700 1 [A 1] [queue [B C]]
    300 peek B -> held 700 0 [A 1] [queue [B C]]
  ]=])
end)

describe("the queue of a fair lock", function()
  case("evicts a Redisson waiter at the head after its deadline", [[
    0 acquire A 9000 1 -1 publish -> held
    100 RPUSH redisson_lock_queue:@ R S -> 2
    100 ZADD redisson_lock_timeout:@ +400 R +900 S -> 2
    200 acquire B 2000 1 -1 publish -> busy 8800
    200 keys -> alive {=200.00 B=t200+10.p200003}, lock {A=1}, queue (R S B),
      .. timeout {B=10900 R=400 S=900}, until 3610900 alive queue timeout, until
      .. 9000 lock
    400 acquire B 2000 1 -1 publish -> busy 8600
    400 keys -> alive {=400.00 B=t400+10.p200003}, queue (S B), timeout {B=11100
      .. -R}
    800 RPUSH redisson_lock_queue:@ T -> 3
    800 ZADD redisson_lock_timeout:@ +40000 T -> 1
    899 acquire B 2000 1 -1 publish -> busy 8101
    900 acquire B 2000 1 -1 publish -> busy 8100
    900 keys -> alive {=900.00 B=t900+10.p200003}, queue (B T), timeout {B=10900
      .. -S T=40000}
  ]])

  case("leaves Redisson waiters the lease when it moves them up", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 2000 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    30 RPUSH redisson_lock_queue:@ R -> 3
    30 ZADD redisson_lock_timeout:@ +40000 R -> 1
    40 acquire D 2000 1 7000 publish -> busy 8960
    40 keys -> alive {=40.00 B=t10+2.p10001 C=t20+10.p20002 D=t40+7.p40004},
      .. lock {A=1}, queue (B C R D), timeout {B=2010 C=12010 D=47000 R=40000},
      .. until 3602010 alive queue timeout, until 9000 lock
    50 leave C publish -> left
    50 keys -> alive {-C}, queue (B R D), timeout {-C D=37000 R=30000}
    60 leave B publish -> left
    60 keys -> alive {-B}, queue (R D), timeout {-B D=35000 R=28000}
    70 leave D publish -> left
    80 leave D publish -> left
    80 keys -> -alive, queue (R), timeout {-D}
    100 acquire B 2000 1 1000 publish -> busy 8900
    100 RPUSH redisson_lock_queue:@ S -> 3
    100 ZADD redisson_lock_timeout:@ +100 S -> 1
    110 LREM redisson_lock_queue:@ 1 R -> 1
    110 LPUSH redisson_lock_queue:@ B -> 3
    110 LREM redisson_lock_queue:@ -1 B -> 1
    120 leave B publish -> left
    120 keys -> queue (S), timeout {S=10000}, until 3629000 queue timeout
  ]])

  case("gives a Redisson waiter time when the one ahead goes", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 2000 publish -> busy 8990
    20 RPUSH redisson_lock_queue:@ R -> 2
    20 ZADD redisson_lock_timeout:@ +30 R -> 1
    30 leave B publish -> left
    30 keys -> lock {A=1}, queue (R), timeout {R=11000}, until 3602010 queue
      .. timeout, until 9000 lock
    9001 acquire C 1000 1 -1 publish -> busy 1999, sent channel:R=0
    9002 RPUSH redisson_lock_queue:@ R -> 3
    9002 ZADD redisson_lock_timeout:@ +20000 R -> 0
    9003 acquire C 1000 1 -1 publish -> busy 10997, sent channel:R=0
    9003 keys -> alive {=9003.00 C=t9003+10.p9001002}, deaf {=1 R=1}, -lock,
      .. queue (R C R), timeout {C=21002 R=20000}, until 3621000 alive queue
      .. timeout, until 39001 deaf
    9004 release C 1000 0 publish -> lost, sent channel:R=0
    9010 keys -> -alive, queue (R R), timeout {-C}
  ]])

  case("restores the deadline that a Redisson waiter lost", [[
    0 acquire A 9000 1 -1 publish -> held
    10 RPUSH redisson_lock_queue:@ R -> 1
    20 acquire B 2000 1 -1 publish -> busy 8980
    20 keys -> alive {=20.00 B=t20+10.p20002}, lock {A=1}, queue (R B), timeout
      .. {B=24000 R=14000}, until 3624000 alive queue timeout, until 9000 lock
    30 release A 9000 0 publish -> freed, sent channel:R=0
    30 ZREM redisson_lock_timeout:@ R -> 1
    40 acquire B 2000 1 -1 publish -> busy 5000, sent channel:R=0
    40 keys -> alive {=40.00 B=t40+10.p20002}, deaf {=1 R=1}, -lock, timeout
      .. {B=24020 R=5040}, until 30040 deaf
  ]])

  case("restores a queue that was deleted", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 8990
    20 acquire C 2000 1 2000 publish -> busy 8980
    30 acquire D 2000 1 3000 publish -> busy 8970
    40 DEL redisson_lock_queue:@ redisson_lock_timeout:@ -> 2
    50 acquire C 2000 1 2000 publish -> busy 8950
    50 keys -> alive {=50.00 B=t10+10.p10001 C=t50+2.p20002 D=t30+3.p30003},
      .. lock {A=1}, queue (B C D), timeout {B=14000 C=14030 D=14000}, until
      .. 3614000 alive queue timeout, until 9000 lock
    60 acquire D 2000 1 2000 publish -> busy 8940
    60 keys -> alive {=60.00 D=t60+3.p30003}, timeout {D=14030}
    70 DEL redisson_lock_queue:@ -> 1
    80 release A 9000 0 publish -> freed
    80 keys -> -lock, -queue
    90 acquire C 2000 1 2000 publish -> busy 1120
    90 keys -> alive {=90.00 C=t90+2.p20002}, queue (B C D), timeout {C=14070},
      .. until 3614030 alive queue timeout
  ]])

  case("restores the place of a waiter that was struck off", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 5000 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    30 acquire D 2000 1 -1 publish -> busy 8970
    40 LREM redisson_lock_queue:@ 1 B -> 1
    40 ZREM redisson_lock_timeout:@ B -> 1
    50 acquire B 2000 1 5000 publish -> busy 8950
    50 keys -> alive {=50.00 B=t50+20.p10001 C=t20+10.p20002 D=t30+10.p30003},
      .. lock {A=1}, queue (B C D), timeout {B=20050 C=15010 D=25010}, until
      .. 3625010 alive queue timeout, until 9000 lock
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
    130 keys -> alive {=130.00 B=t130+300.p10001}, timeout {B=300130}
  ]])

  case("repairs the queue once a second", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 5000 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    30 acquire D 2000 1 -1 publish -> busy 8970
    40 LREM redisson_lock_queue:@ 1 C -> 1
    50 acquire D 2000 1 -1 publish -> busy 8950
    50 keys -> alive {=50.00 B=t10+5.p10001 C=t20+10.p20002 D=t50+10.p30003},
      .. lock {A=1}, queue (B D), timeout {B=5010 C=15010 D=25030}, until
      .. 3605010 alive queue timeout, until 9000 lock
    1000 acquire D 2000 1 -1 publish -> busy 8000
    1000 keys -> alive {=-9000.1000 D=t1000+10.p30003}, queue (B C D), timeout
      .. {D=25980}, until 3625980 alive queue timeout
    1010 ZADD redisson_lock_timeout:@ +9999 R -> 1
    1020 acquire C 2000 1 -1 publish -> busy 7980
    1020 acquire B 2000 1 -1 publish -> busy 7980
    1600 acquire C 2000 1 -1 publish -> busy 7400
    1600 acquire B 2000 1 -1 publish -> busy 7400
    2000 acquire D 2000 1 -1 publish -> busy 7000
    2000 keys -> alive {=-8000.1000 B=t1600+5.p10001 C=t1600+10.p20002
      .. D=t2000+10.p30003}, queue (B C D R), timeout {B=6600 C=16590 D=26980
      .. R=9999}, until 3626980 alive queue timeout
    2010 RPUSH redisson_lock_queue:@ B -> 5
    2010 ZREM redisson_lock_timeout:@ B -> 1
    2020 acquire C 2000 1 -1 publish -> busy 6980
    2600 acquire C 2000 1 -1 publish -> busy 6400
    2600 acquire B 2000 1 -1 publish -> busy 6400
    3000 acquire D 2000 1 -1 publish -> busy 6000
    3000 keys -> alive {=3000.1000 B=t2600+5.p10001 C=t2600+10.p20002
      .. D=t3000+10.p30003}, timeout {B=7600 C=17590 D=27980}, until 3627980
      .. alive queue timeout
    3010 HSET rlock_fair_alive:@ X 1740800000000000.0999 -> 1
    3010 HSET rlock_fair_alive:@ Y 17408000030720002.01700000003000 -> 1
    3500 acquire D 2000 1 -1 publish -> busy 5500
    4000 acquire D 2000 1 -1 publish -> busy 5000
    4000 keys -> alive {=4000.1000 -B -C D=t4000+10.p30003}, queue (D R),
      .. timeout {-B -C D=14000}, until 3614000 alive queue timeout
  ]])

  case("probes Redisson waiters that hear nothing, twice", [[
    0 RPUSH redisson_lock_queue:@ R S -> 2
    0 ZADD redisson_lock_timeout:@ +90000 R +95000 S -> 2
    0 listen S 1
    0 acquire B 2000 1 -1 publish -> busy 90000, sent channel:R=0
    0 keys -> alive {=0.00 B=t0+10.p3}, deaf {=1 R=1}, queue (R S B), timeout
      .. {B=105000 R=90000 S=95000}, until 30000 deaf, until 3705000 alive queue
      .. timeout
    500 acquire B 2000 1 -1 publish -> busy 89500, sent channel:R=0
    1000 acquire B 2000 1 -1 publish -> busy 89000, sent channel:R=0
    1500 acquire B 2000 1 -1 publish -> busy 88500, sent channel:R=0
    1999 acquire B 2000 1 -1 publish -> busy 88001, sent channel:R=0
    2000 acquire B 2000 1 -1 publish -> busy 93000, sent channel:R=0 channel:S=0
    2000 keys -> alive {=2000.00 B=t2000+10.p3}, -deaf, queue (S B), timeout
      .. {B=107000 -R}, until 3707000 alive queue timeout
    2100 listen S 0
    2500 acquire B 2000 1 -1 publish -> busy 92500, sent channel:S=0
    2500 keys -> alive {=2500.00 B=t2500+10.p3}, deaf {=1 S=1}, timeout
      .. {B=107500}, until 32500 deaf
    3000 acquire B 2000 1 -1 publish -> busy 92000, sent channel:S=0
    4000 acquire B 2000 1 -1 publish -> busy 91000, sent channel:S=0
    4400 acquire B 2000 1 -1 publish -> busy 90600, sent channel:S=0
    4500 acquire B 2000 1 -1 publish -> held, sent channel:S=0
    4500 keys -> -alive, -deaf, lock {B=1}, -queue, -timeout, until 6500 lock
  ]])

  case("wakes a Redisson waiter, and does not probe one that hears", [[
    0 RPUSH redisson_lock_queue:@ R -> 1
    0 ZADD redisson_lock_timeout:@ +90000 R -> 1
    0 listen R 1
    10 acquire B 2000 1 0 publish -> busy 89990, sent channel:R=0
    20 acquire B 2000 1 -1 spublish -> busy 89980, sent s:channel:R=0
    20 keys -> alive {=20.00 B=t20+10.p20002}, deaf {=1}, queue (R B), timeout
      .. {B=100000 R=90000}, until 30020 deaf, until 3700000 alive queue timeout
    30 acquire A 100 1 -1 publish -> busy 89970, sent channel:R=0
    40 break_ - publish -> free, sent channel:R=0
    40 keys -> alive {=30.00 A=t30+10.p30003}, queue (R B A), timeout {A=110000}
    50 listen R 0
    60 break_ - publish -> freed, sent channel:R=0 channel:B=0
    60 keys -> queue (B A), timeout {-R}, until 3710000 alive queue timeout
  ]])

  case("breaks a lock that is held", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 8990
    20 break_ - publish -> freed, sent channel:B=0
    20 keys -> alive {=10.00 B=t10+10.p10001}, queue (B), timeout {B=10010},
      .. until 3610010 alive queue timeout
    30 break_ - publish -> free
    1209 break_ - publish -> free
    1210 break_ - publish -> freed
    1210 keys -> alive {-B}, -queue, -timeout
    1220 break_ - publish -> free
    1230 break_ - both -> free
  ]])

  case("deletes stale entries", [[
    0 HSET rlock_fair_alive:@ - 1740800000000000.00 X 1740800000000010.01 -> 2
    10 acquire A 9000 1 -1 publish -> busy 1200
    10 keys -> alive {=-9990.10 A=t10+10.p10002 X=t0+10.01}, queue (X A),
      .. timeout {A=15010 X=5010}, until 3605010 alive queue timeout
    20 release A 9000 0 publish -> lost, sent channel:X=0
    2000 acquire A 9000 1 0 publish -> held
    2000 keys -> -alive, lock {A=1}, -queue, -timeout, until 11000 lock
    2010 release A 9000 0 publish -> freed
    2020 acquire B 9000 1 -1 publish -> held
    2020 keys -> lock {-A B=1}, until 11020 lock
    2030 DEL lock -> 1
    2040 release B 9000 0 publish -> lost
  ]])

  case("leaves the rest of very many dead waiters for later", [[
    0 acquire A 9000 1 -1 publish -> held
    0 RPUSH redisson_lock_queue:@ W*450 -> 450
    0 ZADD redisson_lock_timeout:@ 1,W*450 -> 450
    10 acquire B 2000 1 -1 publish -> busy 8990
    10 LLEN redisson_lock_queue:@ -> 150
    10 LINDEX redisson_lock_queue:@ 0 -> W302
    20 release A 2000 0 publish -> freed, sent channel:B=0
    20 LLEN redisson_lock_queue:@ -> 1
  ]])

  case("retries soon after it has evicted as many as it may", [[
    0 RPUSH redisson_lock_queue:@ W*401 -> 401
    0 ZADD redisson_lock_timeout:@ 1,W*401 -> 401
    10 acquire B 2000 1 -1 publish -> busy 5, sent channel:W302=0
    10 LLEN redisson_lock_queue:@ -> 101
    20 acquire B 2000 1 -1 publish -> held
    20 LLEN redisson_lock_queue:@ -> 0
  ]])
end)

describe("a fair lock with odd queues", function()
  case("moves up those behind two dead waiters", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 2000 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    30 RPUSH redisson_lock_queue:@ R S T -> 5
    30 ZADD redisson_lock_timeout:@ +5000 R +30000 S +33000 T -> 3
    40 acquire D 2000 1 -1 publish -> busy 8960
    600 acquire D 2000 1 -1 publish -> busy 8400
    1100 acquire D 2000 1 -1 publish -> busy 7900
    1220 acquire D 2000 1 -1 publish -> busy 7780
    1220 keys -> alive {=1220.00 D=t1220+10.p40006}, lock {A=1}, queue (R S T
      .. D), timeout {D=32180 R=15000 S=21000 T=27000}, until 3644060 alive
      .. queue timeout, until 9000 lock
    1300 release A 2000 0 publish -> freed, sent channel:R=0
    1310 acquire E 2000 1 -1 publish -> busy 13690, sent channel:R=0
    1310 keys -> alive {=1310.00 E=t1310+10.p1310005}, deaf {=1 R=1 S=1 T=1},
      .. -lock, queue (R S T D E), timeout {E=42180}, until 31310 deaf
  ]])

  case("bounds the deadline of the last", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    30 ZADD redisson_lock_timeout:@ +9000000 C -> 0
    40 leave B publish -> left
    40 keys -> alive {=20.00 C=t20+10.p20002}, lock {A=1}, queue (C), timeout
      .. {C=300040}, until 3610010 alive queue timeout, until 9000 lock
    50 acquire B 2000 1 -1 publish -> busy 8950
    60 acquire D 2000 1 -1 publish -> busy 8940
    70 ZADD redisson_lock_timeout:@ +9000000 D -> 0
    80 leave B publish -> left
    80 keys -> alive {=60.00 D=t60+10.p60003}, queue (C D), timeout {D=600080}
    90 leave C publish -> left
    90 leave D publish -> left
    90 keys -> -alive, -queue, -timeout
  ]])

  case("removes a waiter that is listed twice from its first place", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 8990
    20 acquire C 2000 1 -1 publish -> busy 8980
    20 acquire D 2000 1 -1 publish -> busy 8980
    30 RPUSH redisson_lock_queue:@ B -> 4
    40 leave B publish -> left
    40 keys -> alive {=20.00 C=t20+10.p20002 D=t20+10.p20003}, lock {A=1}, queue
      .. (C D B), timeout {C=10040 D=20040}, until 3610010 alive queue timeout,
      .. until 9000 lock
    50 leave B publish -> left
    50 keys -> queue (C D)
    60 RPUSH redisson_lock_queue:@ C -> 3
    70 leave C publish -> left
    70 keys -> alive {-C}, queue (D C), timeout {-C D=10070}
  ]])

  case("reads what older versions write", [[
    0 RPUSH redisson_lock_queue:@ X Y -> 2
    0 ZADD redisson_lock_timeout:@ +10000 X +20000 Y -> 2
    0 HSET rlock_fair_alive:@ - 1740800000000000 X 1740800000000010 Y
      .. 1740800000000522 -> 3
    100 acquire B 2000 1 -1 publish -> busy 1200
    100 keys -> alive {=-9900.100 B=t100+10.p100003 X=t0+10 Y=t0+522}, queue (X
      .. Y B), timeout {B=30000 X=10000 Y=20000}, until 3630000 alive queue
      .. timeout
    640 acquire B 2000 1 -1 publish -> busy 660
    1200 acquire B 2000 1 -1 publish -> busy 100
    1200 keys -> alive {=-8800.100 B=t1200+10.p100003}, timeout {B=31100}, until
      .. 3631100 alive queue timeout
  ]])

  case("evicts the dead before a try", [[
    0 acquire A 500 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 490
    20 acquire C 2000 1 -1 publish -> busy 480
    600 acquire C 2000 1 -1 publish -> busy 610
    1100 acquire C 2000 1 -1 publish -> busy 110
    1210 acquire D 2000 1 0 publish -> busy 1090, sent channel:C=0
    1210 keys -> alive {=1100.00 C=t1100+10.p20002}, queue (C), timeout
      .. {C=11210}, until 3621090 alive queue timeout
    1300 leave C publish -> left
    1310 acquire D 2000 1 0 publish -> held
    1310 keys -> -alive, lock {D=1}, -queue, -timeout, until 3310 lock
  ]])

  case("asks for subscribers of both sorts", [[
    0 RPUSH redisson_lock_queue:@ R S -> 2
    0 ZADD redisson_lock_timeout:@ +90000 R +95000 S -> 2
    0 HSET rlock_fair_deaf:@ R 1 S 1 -> 2
    0 PEXPIRE rlock_fair_deaf:@ 28011 -> 1
    10 acquire B 2000 1 -1 both -> busy 89990, sent channel:R=0 s:channel:R=0
    10 keys -> alive {=10.00 B=t10+10.p10003}, deaf {R=1 S=1}, queue (R S B),
      .. timeout {B=105000 R=90000 S=95000}, until 28011 deaf, until 3705000
      .. alive queue timeout
    11 acquire B 2000 1 -1 both -> held, sent channel:R=0 s:channel:R=0
    11 keys -> -alive, -deaf, lock {B=1}, -queue, -timeout, until 2011 lock
  ]])

  case("keeps the order of arrival, whatever the names are", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire Z 2000 1 2000 publish -> busy 8990
    20 acquire Y 2000 1 2000 publish -> busy 8980
    30 acquire X 2000 1 2000 publish -> busy 8970
    40 acquire W 2000 1 2000 publish -> busy 8960
    50 DEL redisson_lock_queue:@ -> 1
    60 acquire X 2000 1 2000 publish -> busy 8940
    60 keys -> alive {=60.00 W=t40+2.p40004 X=t60+2.p30003 Y=t20+2.p20002
      .. Z=t10+2.p10001}, lock {A=1}, queue (Z Y X W), timeout {W=8010 X=6040
      .. Y=4010 Z=2010}, until 3608010 alive queue timeout, until 9000 lock
    70 DEL redisson_lock_queue:@ -> 1
    80 RPUSH redisson_lock_queue:@ R Z -> 2
    80 ZADD redisson_lock_timeout:@ +9000 R -> 1
    80 HSET rlock_fair_alive:@ V 1740800000081922 -> 1
    1000 acquire W 2000 1 2000 publish -> busy 8000
    1000 keys -> alive {=-9000.1000 V=t80+2 W=t1000+2.p40004}, queue (V R Z Y X
      .. W), timeout {R=9000 V=14000 W=8970}, until 3614000 alive queue timeout
    1010 LREM redisson_lock_queue:@ 1 Z -> 1
    1010 LREM redisson_lock_queue:@ 1 X -> 1
    1300 acquire Z 2000 1 2000 publish -> busy 7700
    1300 acquire X 2000 1 2000 publish -> busy 7700
    2000 acquire W 2000 1 2000 publish -> busy 7000
    2000 keys -> alive {=-8000.1000 W=t2000+2.p40004 X=t1300+2.p30003
      .. Z=t1300+2.p10001}, queue (Z V R Y X W), timeout {W=9970 X=7280 Z=3300}
  ]])

  case("evicts no live waiter", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 8990
    20 release B 700 1 publish -> lost
    20 release C 700 0 publish -> lost
    20 keys -> alive {=10.00 B=t10+10.p10001}, lock {A=1}, queue (B), timeout
      .. {B=10010}, until 3610010 alive queue timeout, until 9000 lock
    30 ZADD redisson_lock_timeout:@ +500 X -> 1
    40 leave X publish -> left
    40 keys -> same
    50 HSET rlock_fair_alive:@ V 1740800000051200.01 -> 1
    60 leave V publish -> left
    60 keys -> same
    70 release B 700 0 publish -> lost
    70 keys -> -alive, -queue, -timeout
    80 release A 700 0 publish -> freed
    90 RPUSH redisson_lock_queue:@ R -> 1
    90 release B 700 0 publish -> lost, sent channel:R=0
    90 release B 700 2 publish -> lost
    100 DEL redisson_lock_queue:@ -> 1
    100 HSET rlock_fair_alive:@ V 1740800000051200.01 -> 1
    110 release V 700 0 publish -> lost
    110 keys -> -lock, timeout {R=5090}, until 3605090 timeout
  ]])

  case("proposes no deadline that has passed", [[
    0 acquire A 9000 1 -1 publish -> held
    10 RPUSH redisson_lock_queue:@ R -> 1
    20 acquire B 2000 1 2000 publish -> busy 8980
    20 keys -> alive {=20.00 B=t20+2.p20002}, lock {A=1}, queue (R B), timeout
      .. {B=16000 R=14000}, until 3616000 alive queue timeout, until 9000 lock
    30 leave B publish -> left
    40 ZADD redisson_lock_timeout:@ +100 R -> 0
    5000 acquire B 2000 1 2000 publish -> busy 4000
    5000 keys -> alive {=5000.00 B=t5000+2.p5000001}, queue (B), timeout {B=7000
      .. -R}, until 3607000 alive queue timeout
  ]])

  case("gives a queue without an expiry one", [[
    0 RPUSH redisson_lock_queue:@ R -> 1
    10 acquire B 2000 1 0 publish -> busy 5000, sent channel:R=0
    10 keys -> deaf {=1 R=1}, queue (R), timeout {R=5010}, until 30010 deaf,
      .. until 3605010 queue timeout
  ]])

  case("counts the shares of its own dead waiters only", [[
    0 acquire A 9000 1 -1 publish -> held
    10 acquire B 2000 1 4000 publish -> busy 8990
    20 RPUSH redisson_lock_queue:@ R S -> 3
    20 ZADD redisson_lock_timeout:@ +1000 R +14000 S -> 2
    30 acquire D 2000 1 -1 publish -> busy 8970
    600 acquire D 2000 1 -1 publish -> busy 8400
    1100 acquire D 2000 1 -1 publish -> busy 7900
    1210 acquire D 2000 1 -1 publish -> busy 7790
    1210 keys -> alive {=1210.00 D=t1210+10.p30004}, lock {A=1}, queue (S D),
      .. timeout {D=21180 S=13000}, until 3625070 alive queue timeout, until
      .. 9000 lock
  ]])

  case("admits a try after two long silences", [[
    0 acquire A 1000 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 990
    20 release A 700 0 publish -> freed, sent channel:B=0
    60000 acquire X 2000 1 0 publish -> busy 1200
    120000 acquire X 2000 1 0 publish -> held
    120000 keys -> lock {X=1}, until 122000 lock
  ]])

  case("evicts the silent after the server's clock was set back", [[
    3600000 acquire A 1000 1 -1 publish -> held
    3600010 acquire B 2000 1 -1 publish -> busy 990
    3600020 acquire C 2000 1 -1 publish -> busy 980
    3600030 release A 700 0 publish -> freed, sent channel:B=0
    1000 acquire C 2000 1 -1 publish -> busy 1200
    1900 acquire C 2000 1 -1 publish -> busy 300
    2199 acquire C 2000 1 -1 publish -> busy 100
    2200 acquire C 2000 1 -1 publish -> held
  ]])

  case("keeps the order without the heartbeats", [[
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
  ]])

  case("evicts the dead head by a release", [[
    0 acquire A 1300 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 1290
    20 acquire C 2000 1 -1 publish -> busy 1280
    30 acquire D 2000 1 -1 publish -> busy 1270
    600 refresh publish C D -> busy 700
    1200 refresh publish C D -> busy 100
    1230 release A 700 0 publish -> freed, sent channel:C=0
    1230 keys -> alive {=1200.00 C=t1200+10.p20002 D=t1200+10.p30003}, queue (C
      .. D), timeout {C=20010 D=21230}, until 3630010 alive queue timeout
  ]])

  case("evicts the dead head by force", [[
    0 acquire A 1300 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 1290
    20 acquire C 2000 1 -1 publish -> busy 1280
    30 acquire D 2000 1 -1 publish -> busy 1270
    600 refresh publish C D -> busy 700
    1200 refresh publish C D -> busy 100
    1230 break_ X publish -> freed, sent channel:C=0
    1230 keys -> alive {=1200.00 C=t1200+10.p20002 D=t1200+10.p30003}, queue (C
      .. D), timeout {C=20010 D=21230}, until 3630010 alive queue timeout
  ]])

  case("evicts the dead head by a waiter that leaves", [[
    0 acquire A 1300 1 -1 publish -> held
    10 acquire B 2000 1 -1 publish -> busy 1290
    20 acquire C 2000 1 -1 publish -> busy 1280
    30 acquire D 2000 1 -1 publish -> busy 1270
    600 refresh publish C D -> busy 700
    1200 refresh publish C D -> busy 100
    1230 leave D publish -> left
    1230 keys -> alive {=1200.00 B=t10+10.p10001 C=t1200+10.p20002}, lock {A=1},
      .. queue (B C), timeout {B=10010 C=20010}, until 1300 lock, until 3630010
      .. alive queue timeout
  ]])
end)

-- By their names in Redisson's RedissonFairLockTest; a waiter of Redisson, R,
-- joins and takes the lock by Redisson's rules.
describe("the deadlines of a fair lock", function()
  case("testAcquireFailedTimeoutDrift_Descrete: 5 s less when one leaves", [[
    0 acquire I 30000 1 5000 publish -> held
    0 acquire A 30000 1 5000 publish -> busy 30000
    0 acquire B 30000 1 5000 publish -> busy 30000
    0 acquire C 30000 1 5000 publish -> busy 30000
    0 acquire D 30000 1 5000 publish -> busy 30000
    0 keys -> alive {=0.00 A=t0+5.p1 B=t0+5.p2 C=t0+5.p3 D=t0+5.p4}, lock {I=1},
      .. queue (A B C D), timeout {A=5000 B=10000 C=15000 D=20000}, until 30000
      .. lock, until 3605000 alive queue timeout
    1 leave B publish -> left
    1 keys -> alive {-B}, queue (A C D), timeout {-B D=15001}
    2 acquire B 30000 1 5000 publish -> busy 29998
    2 leave C publish -> left
    2 leave D publish -> left
    2 keys -> alive {=2.00 B=t2+5.p2004 -C -D}, queue (A B), timeout {B=10002 -C
      .. -D}
    3 release I 0 0 publish -> freed, sent channel:A=0
    3 acquire A 30000 1 5000 publish -> held
    3 keys -> alive {-A}, lock {A=1 -I}, queue (B), timeout {-A B=5003}, until
      .. 30003 lock
    4 release A 0 0 publish -> freed, sent channel:B=0
    4 acquire B 30000 1 5000 publish -> held
    4 keys -> -alive, lock {-A B=1}, -queue, -timeout, until 30004 lock
  ]])

  case("testAcquireFailedTimeoutDrift_Descrete, with waiters of Redisson", [[
    0 acquire I 30000 1 5000 publish -> held
    0 acquire A 30000 1 5000 publish -> busy 30000
    0 RPUSH redisson_lock_queue:@ R -> 2
    0 ZADD redisson_lock_timeout:@ +10000 R -> 1
    0 acquire C 30000 1 5000 publish -> busy 30000
    0 RPUSH redisson_lock_queue:@ S -> 4
    0 ZADD redisson_lock_timeout:@ +20000 S -> 1
    0 keys -> alive {=0.00 A=t0+5.p1 C=t0+5.p3}, lock {I=1}, queue (A R C S),
      .. timeout {A=5000 C=15000 R=10000 S=20000}, until 30000 lock, until
      .. 3605000 alive queue timeout
    1 leave A publish -> left
    1 keys -> alive {-A}, queue (R C S), timeout {-A C=10001 R=35000}
    2 leave C publish -> left
    2 keys -> -alive, queue (R S), timeout {-C}
    3 acquire C 30000 1 5000 publish -> busy 29997
    3 keys -> alive {=3.00 C=t3+5.p3003}, queue (R S C), timeout {C=25000},
      .. until 3635000 alive queue timeout
  ]])

  case("testLockAcquiredTimeoutDrift_Descrete: 5 s less behind who gets it", [[
    0 acquire I 30000 1 5000 publish -> held
    0 acquire A 30000 1 5000 publish -> busy 30000
    0 RPUSH redisson_lock_queue:@ R -> 2
    0 ZADD redisson_lock_timeout:@ +10000 R -> 1
    0 acquire C 30000 1 5000 publish -> busy 30000
    0 release I 0 0 publish -> freed, sent channel:A=0
    0 acquire A 30000 1 5000 publish -> held
    0 keys -> alive {=0.00 C=t0+5.p3}, lock {A=1}, queue (R C), timeout {C=10000
      .. R=35000}, until 30000 lock, until 3605000 alive queue timeout
    1 DEL lock -> 1
    1 LPOP redisson_lock_queue:@ -> R
    1 ZREM redisson_lock_timeout:@ R -> 1
    1 ZINCRBY redisson_lock_timeout:@ -5000 C -> 5000
    1 HSET lock R 1 -> 1
    1 PEXPIRE lock 30000 -> 1
    2 DEL lock -> 1
    2 acquire C 30000 1 5000 publish -> held
    2 keys -> -alive, lock {-A C=1}, -queue, -timeout, until 30002 lock
  ]])

  case("testLockAcquiredBooleanTimeoutDrift_Descrete: as well by a try", [[
    0 acquire I 30000 1 5000 publish -> held
    0 acquire A 30000 1 5000 publish -> busy 30000
    0 acquire B 30000 1 5000 publish -> busy 30000
    0 RPUSH redisson_lock_queue:@ R -> 3
    0 ZADD redisson_lock_timeout:@ +15000 R -> 1
    1 release I 0 0 publish -> freed, sent channel:A=0
    1 acquire B 30000 1 0 publish -> busy 1199
    1 acquire A 30000 1 0 publish -> held
    1 keys -> alive {=0.00 B=t0+5.p2}, lock {A=1}, queue (B R), timeout {B=5001
      .. R=15000}, until 30001 lock, until 3605000 alive queue timeout
  ]])

  case("testAbandonedTimeoutDrift_Descrete: nothing is left of the dead", [[
    0 acquire I 30000 1 5000 publish -> held
    0 acquire A 30000 1 5000 publish -> busy 30000
    0 acquire B 30000 1 5000 publish -> busy 30000
    0 acquire C 30000 1 5000 publish -> busy 30000
    0 RPUSH redisson_lock_queue:@ R -> 4
    0 ZADD redisson_lock_timeout:@ +20000 R -> 1
    600 acquire C 30000 1 5000 publish -> busy 29400
    1200 acquire C 30000 1 5000 publish -> busy 28800
    1200 keys -> alive {=1200.00 C=t1200+5.p3}, lock {I=1}, queue (C R), timeout
      .. {C=6200 R=20000}, until 30000 lock, until 3620000 alive queue timeout
  ]])

  local add, queue, at

  -- Deadlines stay bounded however often event() takes one of six waiters off
  -- the queue, also if every seventh is of Redisson.
  local function wear(event, is_mixed)
    local lines, last = { "0 acquire X 30000 1 -1 publish" }, 0
    queue, at = {}, 0
    function add(...)
      lines[#lines + 1] = ("%d "):format(at) .. table.concat({ ... }, " ")
    end
    local function join(who)
      queue[#queue + 1] = who
      if who:find "^W" then return add("acquire", who, "30000 1 -1 publish") end
      add("RPUSH redisson_lock_queue:@", who)
      add(("ZADD redisson_lock_timeout:@ +%d %s"):format(at + 300000, who))
    end
    local function take(who)              -- by Redisson, and the next tries
      add "DEL lock"
      add "LPOP redisson_lock_queue:@"
      add("ZREM redisson_lock_timeout:@", who)
      for _, other in ipairs(queue) do
        add("ZINCRBY redisson_lock_timeout:@ -300000", other)
      end
      add("acquire", table.remove(queue, 1), "30000 1 0 publish")
    end
    for _ = 1, 40 do
      while #queue < 6 do
        last = last + 1
        join((is_mixed and last % 7 == 0 and "R" or "W") .. last)
      end
      at = at + 10
      if queue[1]:find "^R" then take(table.remove(queue, 1)) else event() end
    end
    for _, who in ipairs(queue) do
      add("ZSCORE redisson_lock_timeout:@", who)
    end
    local shown = transcript.run("fair", table.concat(lines, "\n"))
    local n, most = 0, at + 31000 + 6 * (is_mixed and 300000 or 10000)
    for time in shown:gmatch "ZSCORE %S+ %S+ %-> (%d+)" do
      n = n + 1
      assert.is_true(tonumber(time) > 0 and tonumber(time) <= most, time)
    end
    assert.equal(#queue, n)
  end

  for title, event in pairs {
    testLockAcquiredTimeoutDrift = function()
      add "break_ - publish"
      add("acquire", table.remove(queue, 1), "30000 1 -1 publish")
    end,
    testWaitTimeoutDrift = function()
      add("leave", table.remove(queue), "publish")
    end,
    testFirstThreadDeathTimeoutDrift = function()
      table.remove(queue, 1)
      for _ = 1, 3 do
        at = at + 600
        for _, who in ipairs(queue) do
          if who:find "^W" then add("acquire", who, "30000 1 -1 publish") end
        end
      end
    end,
  } do
    it(title .. ": they do not drift", function()
      wear(event, false)
      wear(event, true)
    end)
  end
end)
