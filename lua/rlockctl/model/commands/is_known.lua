--- The names of the commands of Redis up to 8 and Valkey up to 9, without those
--- of modules. They distinguish a command that the model lacks from a misspelt
--- one.

local known = {}

for name in ([[acl append asking auth bgrewriteaof bgsave bitcount bitfield
    bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush bzmpop
    bzpopmax bzpopmin client cluster command commandlog config copy dbsize
    debug decr decrby del delex delifeq digest discard dump echo eval
    eval_ro evalsha evalsha_ro exec exists expire expireat expiretime
    failover fcall fcall_ro flushall flushdb function gcra geoadd geodist
    geohash geopos georadius georadius_ro georadiusbymember
    georadiusbymember_ro geosearch geosearchstore get getbit getdel getex
    getrange getset hdel hello hexists hexpire hexpireat hexpiretime hget
    hgetall hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset
    hotkeys hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield
    hscan hset hsetex hsetnx hstrlen httl hvals incr incrby incrbyfloat
    info keys lastsave latency lcs lindex linsert llen lmove lmpop lolwut
    lpop lpos lpush lpushx lrange lrem lset ltrim memory mget migrate
    module monitor move mset msetex msetnx multi object persist pexpire
    pexpireat pexpiretime pfadd pfcount pfdebug pfmerge pfselftest ping
    psetex psubscribe psync pttl publish pubsub punsubscribe quit
    randomkey readonly readwrite rename renamenx replconf replicaof reset
    restore restore-asking role rpop rpoplpush rpush rpushx sadd save scan
    scard script sdiff sdiffstore select set setbit setex setnx setrange
    shutdown sinter sintercard sinterstore sismember slaveof slowlog
    smembers smismember smove sort sort_ro spop spublish srandmember srem
    sscan ssubscribe strlen subscribe substr sunion sunionstore
    sunsubscribe swapdb sync time touch ttl type unlink unsubscribe
    unwatch vadd vcard vdim vemb vgetattr vinfo vismember vlinks
    vrandmember vrange vrem vsetattr vsim wait waitaof watch xack xackdel
    xadd xautoclaim xcfgset xclaim xdel xdelex xgroup xinfo xlen xpending
    xrange xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount zdiff
    zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop
    zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore
    zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore
    zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion
    zunionstore]])
    :gmatch("%S+") do
  known[name] = true
end

--- Does Redis have a command of that name? The name of a module's command
--- contains a dot; a bar precedes a subcommand.
---@param name string # in lower case
---@return boolean
local function is_known(name)
  return known[name:match("^[^|]*")] or name:find("%w%.%w") ~= nil
end

return is_known
