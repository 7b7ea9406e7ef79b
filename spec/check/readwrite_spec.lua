--- The operations of a read/write lock at exact times, on the model of Redis.

local transcript = require "spec.tools.transcript"

local case = transcript.tests(it, "readwrite")

describe("a read/write lock", function()
  case("lets readers share it, and keeps writers out", [[
    0 read.acquire A 1000 1 -> held
    0 keys -> :A:rwlock_timeout:1 1, holds {A=1000}, lock {A=1 mode=read}, until
      .. 1000 :A:rwlock_timeout:1 holds lock
    100 read.acquire B 2000 1 -> held
    100 keys -> :B:rwlock_timeout:1 1, holds {B=2100}, lock {B=1}, until 2100
      .. :B:rwlock_timeout:1 holds lock
    200 read.acquire C 500 1 -> held
    200 keys -> :C:rwlock_timeout:1 1, holds {C=700}, lock {C=1}, until 700
      .. :C:rwlock_timeout:1
    250 write.acquire D 500 1 -> busy 1850
    300 read.acquire A 1000 2 -> held
    300 keys -> :A:rwlock_timeout:2 1, holds {A=1300}, lock {A=2}, until 1300
      .. :A:rwlock_timeout:2
    350 read.release A 800 1 publish -> kept
    350 keys -> -:A:rwlock_timeout:2, holds {A=1150}, lock {A=1}, until 1150
      .. :A:rwlock_timeout:1
    360 write.acquire A 500 1 -> refused upgrade: this owner reads, and a writer
      .. waits for all readers
    700 read.renew C 500 1 -> lost
    701 read.renew B 100 1 -> held
    701 keys -> -:C:rwlock_timeout:1
    710 read.release B 0 0 publish -> freed
    710 keys -> -:B:rwlock_timeout:1, holds {-B}, lock {-B}, until 1150 lock
    720 read.release A 0 0 publish -> freed, sent rwlock=0
    720 keys -> none
    730 read.release A 0 0 publish -> lost
    730 write.acquire D 500 1 -> held
  ]])

  case("frees it with its last reader", [[
    0 read.acquire A 1000 1 -> held
    100 read.acquire A 1000 2 -> held
    100 keys -> :A:rwlock_timeout:1 1, :A:rwlock_timeout:2 1, holds {A=1100},
      .. lock {A=2 mode=read}, until 1000 :A:rwlock_timeout:1, until 1100
      .. :A:rwlock_timeout:2 holds lock
    200 read.release A 1000 0 publish -> freed, sent rwlock=0
    200 keys -> none
    300 write.acquire B 1000 1 -> held
    300 keys -> lock {B:write=1 mode=write}, until 1300 lock
    400 read.acquire A 1000 1 -> busy 900
    400 read.acquire A 1000 2 -> lost 900
    400 write.acquire A 1000 1 -> busy 900
    500 write.acquire B 500 2 -> held
    500 keys -> lock {B:write=2}
    500 write.acquire B 2000 3 -> held
    500 keys -> lock {B:write=3}, until 2500 lock
    600 write.release B 700 1 publish -> kept
    600 keys -> lock {B:write=1}, until 1300 lock
    600 write.renew B 500 1 -> held
    600 write.renew B 5000 1 -> held
    600 keys -> until 5600 lock
    600 write.renew A 5000 1 -> lost
    700 write.release A 700 0 publish -> lost
    700 write.release B 700 0 publish -> freed, sent rwlock=1
    700 keys -> none
    700 write.acquire B 700 2 -> lost
  ]])

  case("lets the writer read, and go on as a reader", [[
    0 write.acquire A 1000 1 -> held
    100 read.acquire A 2000 1 -> held
    100 keys -> :A:rwlock_timeout:1 1, holds {A:write=1000 A=2100}, lock
      .. {A:write=1 A=1 mode=write}, until 2100 :A:rwlock_timeout:1 holds lock
    200 write.acquire A 500 2 -> held
    200 keys -> lock {A:write=2}
    300 write.acquire A 5000 2 -> held
    300 keys -> holds {A:write=5300}, until 5300 holds lock
    400 write.release A 1000 1 publish -> kept
    400 keys -> holds {A:write=1400}, lock {A:write=1}, until 2100 lock
    500 write.renew A 3000 1 -> held
    500 keys -> holds {A:write=3500}, until 3500 holds lock
    600 read.acquire B 1000 1 -> busy 1500
    600 read.peek A -> held 2900 1 [A 1] [mode write]
    700 write.release A 1000 0 publish -> freed, sent rwlock=1
    700 keys -> holds {-A:write}, lock {-A:write mode=read}, until 2100 lock
    800 read.acquire B 300 1 -> held
    800 keys -> :B:rwlock_timeout:1 1, holds {B=1100}, lock {B=1}, until 1100
      .. :B:rwlock_timeout:1, until 2100 holds
    900 read.release A 300 0 publish -> freed, sent rwlock=0
    900 keys -> -:A:rwlock_timeout:1, holds {-A}, lock {-A}, until 1100 lock
    1050 read.release B 300 0 publish -> freed, sent rwlock=0
    1050 keys -> none
  ]])

  case("lets the writer stop to read", [[
    0 write.acquire A 9000 1 -> held
    100 read.acquire A 2000 1 -> held
    200 read.acquire A 2000 2 -> held
    200 keys -> :A:rwlock_timeout:1 1, :A:rwlock_timeout:2 1, holds
      .. {A:write=9000 A=2200}, lock {A:write=1 A=2 mode=write}, until 2100
      .. :A:rwlock_timeout:1, until 2200 :A:rwlock_timeout:2, until 9000 holds
      .. lock
    300 read.release A 1000 1 publish -> kept
    300 keys -> -:A:rwlock_timeout:2, holds {A=1300}, lock {A=1}, until 1300
      .. :A:rwlock_timeout:1
    400 read.release A 0 0 publish -> freed
    400 keys -> -:A:rwlock_timeout:1, -holds, lock {-A}
    500 read.release A 0 0 publish -> lost
    600 write.release A 0 0 publish -> freed, sent rwlock=1
    600 keys -> none
  ]])

  case("forgets a read hold of the writer whose lease has ended", [[
    0 write.acquire A 9000 1 -> held
    100 read.acquire A 300 1 -> held
    400 read.renew A 500 1 -> lost
    400 write.renew A 9000 1 -> held
    400 keys -> lock {A:write=1 mode=write}, until 9400 lock
    500 read.acquire A 300 1 -> held
    700 read.acquire B 300 1 -> busy 100
    900 read.acquire B 300 1 -> busy 1
    900 keys -> same
  ]])

  case("forgets a write hold of a reader whose lease has ended", [[
    0 write.acquire A 300 1 -> held
    100 read.acquire A 900 1 -> held
    299 write.renew A 300 1 -> held
    500 keys -> :A:rwlock_timeout:1 1, holds {A:write=599 A=1000}, lock
      .. {A:write=1 A=1 mode=write}, until 1000 :A:rwlock_timeout:1 holds lock
    600 write.renew A 300 1 -> lost
    600 keys -> holds {-A:write}, lock {-A:write mode=read}
    700 read.acquire B 300 1 -> held
    700 write.release A 300 0 publish -> lost
    700 keys -> :B:rwlock_timeout:1 1, holds {B=1000}, lock {B=1}, until 1000
      .. :B:rwlock_timeout:1
  ]])

  case("drops 16 dead readers of Redisson at a time", [[
    0 HSET lock mode read W0 1,W*20 1 -> 22
    0 PEXPIRE lock 5000 -> 1
    100 read.acquire A 1000 1 -> held
    200 read.release A 1 0 publish -> freed
    200 HLEN lock -> 7
    300 read.acquire A 1000 1 -> held
    400 read.release A 1 0 publish -> freed, sent rwlock=0
    400 keys -> none
  ]])

  case("lasts as long as its readers, and drops the dead", [[
    0 read.acquire A 1000 1 -> held
    10 read.acquire B 100 1 -> held
    20 read.acquire C 110 1 -> held
    30 read.acquire D 120 1 -> held
    40 read.acquire E 130 1 -> held
    50 read.acquire F 140 1 -> held
    60 keys -> :A:rwlock_timeout:1 1, :B:rwlock_timeout:1 1, :C:rwlock_timeout:1
      .. 1, :D:rwlock_timeout:1 1, :E:rwlock_timeout:1 1, :F:rwlock_timeout:1 1,
      .. holds {A=1000 B=110 C=130 D=150 E=170 F=190}, lock {A=1 B=1 C=1 D=1 E=1
      .. F=1 mode=read}, until 1000 :A:rwlock_timeout:1 holds lock, until 110
      .. :B:rwlock_timeout:1, until 130 :C:rwlock_timeout:1, until 150
      .. :D:rwlock_timeout:1, until 170 :E:rwlock_timeout:1, until 190
      .. :F:rwlock_timeout:1
    500 read.acquire G 100 1 -> held
    500 keys -> -:B:rwlock_timeout:1, -:C:rwlock_timeout:1,
      .. -:D:rwlock_timeout:1, -:E:rwlock_timeout:1, -:F:rwlock_timeout:1,
      .. :G:rwlock_timeout:1 1, holds {-B -C -D -E G=600}, lock {-B -C -D -E
      .. G=1}, until 600 :G:rwlock_timeout:1
    510 read.release B 0 0 publish -> lost
    510 read.release F 0 0 publish -> lost
    510 keys -> holds {-F}, lock {-F}
    520 read.release A 0 0 publish -> freed
    520 keys -> -:A:rwlock_timeout:1, holds {-A}, lock {-A}, until 600 lock
    530 read.acquire A 1000 1 -> held
    530 read.release G 0 0 publish -> freed
    620 read.release A 500 1 publish -> kept
    620 keys -> :A:rwlock_timeout:1 1, -:G:rwlock_timeout:1, holds {A=1120 -G},
      .. lock {A=1 -G}, until 1120 :A:rwlock_timeout:1 lock, until 1530 holds
    630 read.release A 1500 1 publish -> kept
    630 keys -> holds {A=2130}, until 2130 :A:rwlock_timeout:1 holds lock
  ]])

  case("wakes waiters when it becomes free much sooner", [[
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
    80 keys -> :A:rwlock_timeout:1 1, holds {A=7070}, lock {A=1 mode=read},
      .. until 7070 :A:rwlock_timeout:1 lock, until 9060 holds
  ]])

  case("does not forget readers of Redisson", [[
    0 HSET lock mode read R:1 1 -> 2
    0 SET @:R:1:rwlock_timeout:1 1 PX 3000 -> OK
    0 PEXPIRE lock 3000 -> 1
    100 read.acquire A 5000 1 -> held
    100 keys -> :A:rwlock_timeout:1 1, :R:1:rwlock_timeout:1 1, holds {A=5100},
      .. lock {A=1 R:1=1 mode=read}, until 3000 :R:1:rwlock_timeout:1, until
      .. 5100 :A:rwlock_timeout:1 holds lock
    200 read.release A 0 0 publish -> freed, sent rwlock=0
    200 keys -> -:A:rwlock_timeout:1, -holds, lock {-A}, until 3000 lock
    300 read.acquire A 9000 2 -> lost
    300 read.acquire A 9000 1 -> held
    300 keys -> :A:rwlock_timeout:1 1, holds {A=9300}, lock {A=1}, until 9300
      .. :A:rwlock_timeout:1 holds lock
    400 HSET lock R:2 2 -> 1
    400 SET @:R:2:rwlock_timeout:2 1 PX 4000 -> OK
    500 read.release A 0 0 publish -> freed, sent rwlock=0
    500 keys -> -:A:rwlock_timeout:1, :R:2:rwlock_timeout:2 1, -holds, lock {-A
      .. R:2=2}, until 4400 :R:2:rwlock_timeout:2 lock
    600 read.acquire A 9000 1 -> held
    3100 read.release A 0 0 publish -> freed, sent rwlock=0
    3100 keys -> -:R:1:rwlock_timeout:1, lock {-R:1}
    3200 read.acquire A 9000 1 -> held
    4400 read.release A 0 0 publish -> freed, sent rwlock=0
    4400 keys -> none
  ]])

  case("drops readers of Redisson whose leases have ended", [[
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
  ]])

  case("forgets an index that is not of this lock", [[
    0 read.acquire A 5000 1 -> held
    100 DEL lock -> 1
    100 keys -> :A:rwlock_timeout:1 1, holds {A=5000}, until 5000
      .. :A:rwlock_timeout:1 holds
    200 read.acquire B 1000 1 -> held
    200 keys -> :B:rwlock_timeout:1 1, holds {-A B=1200}, lock {B=1 mode=read},
      .. until 1200 :B:rwlock_timeout:1 holds lock
    300 read.renew A 5000 1 -> lost
    300 write.acquire A 1000 1 -> busy 900
    400 DEL lock -> 1
    400 write.acquire W 1000 1 -> held
    500 read.acquire A 5000 1 -> busy 700
    500 write.acquire W 1000 1 -> held
  ]])

  case("reasserts what Redisson's watchdog has shortened", [[
    0 read.acquire A 5000 1 -> held
    100 PEXPIRE lock 100 -> 1
    100 PEXPIRE @:A:rwlock_timeout:1 100 -> 1
    150 read.renew A 4850 1 reasserts -> held
    150 keys -> :A:rwlock_timeout:1 1, holds {A=5000}, lock {A=1 mode=read},
      .. until 5000 :A:rwlock_timeout:1 holds lock
    160 read.renew A 9000 1 reasserts -> held
    160 keys -> same
    170 read.renew A 9000 1 -> held
    170 keys -> holds {A=9170}, until 9170 :A:rwlock_timeout:1 holds lock
    180 DEL rlock_rw_holds:@ -> 1
    190 read.renew A 500 1 reasserts -> held
    190 keys -> holds {A=690}, until 690 :A:rwlock_timeout:1
  ]])

  case("breaks it for one side", [[
    0 read.break_ - publish -> free
    0 read.acquire A 5000 1 -> held
    10 write.break_ - publish -> free
    10 read.break_ 1 publish -> refused a read/write lock has no fencing tokens
    10 keys -> :A:rwlock_timeout:1 1, holds {A=5000}, lock {A=1 mode=read},
      .. until 5000 :A:rwlock_timeout:1 holds lock
    10 read.break_ - publish -> freed, sent rwlock=0
    10 keys -> -holds, -lock
    20 write.acquire A 5000 1 -> held
    30 read.break_ - publish -> free
    30 write.break_ - publish -> freed, sent rwlock=1
    30 keys -> same
    40 write.break_ - publish -> free
  ]])

  case("shows its holders", [[
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
  ]])

  case("publishes as the client asks", [[
    0 write.acquire A 9000 1 -> held
    0 write.release A 0 0 spublish -> freed, sent s:rwlock=1
    0 read.acquire A 9000 1 -> held
    0 read.release A 0 0 both -> freed, sent rwlock=0 s:rwlock=0
    0 keys -> none
  ]])

  case("refuses owners with bad names", [[
    0 read.acquire mode 5000 1 -> refused an owner of a read/write lock cannot
      .. be called "mode" or end in ":write"
    0 write.acquire A:write 5000 1 -> refused an owner of a read/write lock
      .. cannot be called "mode" or end in ":write"
    0 write.acquire A 5000 1 -> held
    0 read.renew A:write 5000 1 -> lost
    0 read.release A:write 0 0 publish -> lost
    0 write.release mode 0 0 publish -> lost
    0 write.renew mode 0 1 -> lost
  ]])

  case("lets no one in where the key is something else", [[
    0 HSET lock x 1 -> 1
    0 read.acquire A 1000 1 -> busy -1
    0 write.acquire A 1000 1 -> busy -1
    0 read.release A 0 0 publish -> lost
    0 PEXPIRE lock 500 -> 1
    0 write.acquire A 1000 1 -> busy 500
  ]])

  case("keeps the lease of the others when one is prolonged", [[
    0 read.acquire A 1000 1 -> held
    0 read.acquire A 1000 2 -> held
    0 read.acquire B 9000 1 -> held
    100 read.release A 3000 1 publish -> kept
    100 keys -> :A:rwlock_timeout:1 1, :B:rwlock_timeout:1 1, holds {A=3100
      .. B=9000}, lock {A=1 B=1 mode=read}, until 3100 :A:rwlock_timeout:1,
      .. until 9000 :B:rwlock_timeout:1 holds lock
    200 read.acquire A 2900 2 -> held
    200 read.release A 2900 1 publish -> kept
    200 keys -> same
    300 read.renew A 100 1 -> held
    300 read.renew B 8700 1 -> held
    300 keys -> same
  ]])

  case("finds the leases of Redisson's readers by their hold keys", [[
    0 HSET lock mode read R 3 S 2.5 T 3000000000 U x -> 5
    0 PEXPIRE lock 9000 -> 1
    0 SET @:R:rwlock_timeout:1 1 PX 4000 -> OK
    0 SET @:R:rwlock_timeout:2 1 PX 5000 -> OK
    0 SET @:R:rwlock_timeout:3 1 PX 3000 -> OK
    0 SET @:S:rwlock_timeout:1 1 PX 6000 -> OK
    0 SET @:T:rwlock_timeout:1 1 PX 200 -> OK
    100 read.acquire A 20000 1 -> held
    110 read.release A 0 0 publish -> freed
    110 keys -> :R:rwlock_timeout:1 1, :R:rwlock_timeout:2 1,
      .. :R:rwlock_timeout:3 1, :S:rwlock_timeout:1 1, :T:rwlock_timeout:1 1,
      .. lock {R=3 S=2.5 T=3000000000 U=x mode=read}, until 200
      .. :T:rwlock_timeout:1, until 20100 lock, until 3000 :R:rwlock_timeout:3,
      .. until 4000 :R:rwlock_timeout:1, until 5000 :R:rwlock_timeout:2, until
      .. 6000 :S:rwlock_timeout:1
    200 HDEL lock U -> 1
    200 read.acquire A 20000 1 -> held
    210 read.release A 0 0 publish -> freed, sent rwlock=0
    210 keys -> -:T:rwlock_timeout:1, lock {-T -U}, until 6000 lock
    5999 read.acquire A 20000 1 -> held
    5999 read.release A 0 0 publish -> freed, sent rwlock=0
    5999 keys -> -:R:rwlock_timeout:1, -:R:rwlock_timeout:2,
      .. -:R:rwlock_timeout:3, lock {-R}
    6000 read.acquire A 20000 1 -> held
    6000 read.release A 0 0 publish -> freed, sent rwlock=0
    6000 keys -> none
  ]])

  case("leaves Redisson's expiry while a writer has it", [[
    0 write.acquire A 9000 1 -> held
    10 read.acquire A 20000 1 -> held
    20 HSET lock R 1 -> 1
    30 read.release A 0 0 publish -> freed
    30 keys -> lock {A:write=1 R=1 mode=write}, until 20010 lock
    40 read.acquire A 20000 1 -> held
    50 DEL rlock_rw_holds:@ -> 1
    60 read.renew A 20000 1 -> held
    60 keys -> :A:rwlock_timeout:1 1, holds {A=20060}, lock {A=1}, until 20060
      .. :A:rwlock_timeout:1 holds lock
    70 read.release A 0 0 publish -> freed
    70 keys -> -:A:rwlock_timeout:1, -holds, lock {-A}
    80 write.release A 0 0 publish -> freed, sent rwlock=1
  ]])

  case("forgets dead holds of the writer in any order", [[
    0 write.acquire A 9000 1 -> held
    10 read.acquire A 100 1 -> held
    50 write.acquire A 9000 2 -> held
    110 write.acquire B 100 1 -> busy 8940
    110 read.acquire B 100 1 -> busy 1
    110 keys -> lock {A:write=2 mode=write}, until 9050 lock
    120 write.release A 5000 1 publish -> kept
    120 keys -> lock {A:write=1}, until 5120 lock
    130 read.acquire A 4990 1 -> held
    140 write.release A 4980 1 publish -> kept
    150 write.release A 3000 1 publish -> kept
    150 keys -> :A:rwlock_timeout:1 1, holds {A:write=3150 A=5120}, lock {A=1},
      .. until 5120 :A:rwlock_timeout:1 holds
    160 read.release A 0 0 publish -> freed, sent rwlock=1
    170 write.release A 0 0 publish -> freed, sent rwlock=1
  ]])

  case("ends with the last of many holds", [[
    0 read.acquire A 1000 1 -> held
    0 read.acquire A 1000 2 -> held
    0 read.acquire A 1000 3 -> held
    0 HSET lock A x -> 0
    10 read.release A 1000 0 publish -> freed, sent rwlock=0
    10 keys -> :A:rwlock_timeout:2 1, :A:rwlock_timeout:3 1, until 1000
      .. :A:rwlock_timeout:2 :A:rwlock_timeout:3
    20 read.acquire A 100 1 -> held
    120 read.release A 1000 0 publish -> lost
    120 keys -> same
  ]])

  case("is free for a writer when only dead readers are left", [[
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
    220 keys -> lock {W:write=1 mode=write}, until 1220 lock
  ]])

  case("lasts without its index", [[
    0 read.acquire A 9000 1 -> held
    0 read.acquire B 3000 1 -> held
    10 DEL rlock_rw_holds:@ -> 1
    20 write.acquire W 1000 1 -> busy 8980
    30 read.release A 0 0 publish -> freed
    30 keys -> :B:rwlock_timeout:1 1, lock {B=1 mode=read}, until 3000
      .. :B:rwlock_timeout:1 lock
    40 read.renew B 4000 1 -> held
    40 keys -> holds {B=4040}, until 4040 :B:rwlock_timeout:1 holds lock
    50 read.release B 0 0 publish -> freed, sent rwlock=0
    60 write.acquire A 9000 1 -> held
    60 read.acquire A 3000 1 -> held
    70 DEL rlock_rw_holds:@ -> 1
    80 read.acquire B 1000 1 -> busy 8980
    90 write.release A 0 0 publish -> freed, sent rwlock=1
    90 keys -> :A:rwlock_timeout:1 1, -:B:rwlock_timeout:1, -holds, lock {A=1
      .. -B}, until 3060 :A:rwlock_timeout:1 lock
  ]])

  case("gets an expiry if it has none", [[
    0 HSET lock mode read R 1 -> 2
    0 write.acquire A 1000 1 -> busy -1
    0 read.acquire A 9000 1 -> held
    0 keys -> :A:rwlock_timeout:1 1, holds {A=9000}, lock {A=1 R=1 mode=read},
      .. until 9000 :A:rwlock_timeout:1 holds lock
  ]])

  case("restores a hold key that is lost", [[
    0 read.acquire A 5000 1 -> held
    10 DEL @:A:rwlock_timeout:1 -> 1
    20 read.renew A 5000 1 -> held
    20 keys -> :A:rwlock_timeout:1 1, holds {A=5020}, lock {A=1 mode=read},
      .. until 5020 :A:rwlock_timeout:1 holds lock
  ]])
end)

require "spec.rows.leases" ("readwrite", "read_write_lock", describe, it)
