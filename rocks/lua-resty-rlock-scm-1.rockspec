rockspec_format = "3.0"
package = "lua-resty-rlock"
version = "scm-1"
source = { url = "." }                  -- for `luarocks make`, at the sources
description = {
  summary = "Distributed locks in Redis for OpenResty",
  detailed = [[
    Locks, fair and read/write locks, semaphores, latches and Redlock that
    wait without blocking, over pooled cosockets, with one subscriber in each
    worker. Each lock is a Lua file of its own.]],
  license = "MIT",
}
dependencies = { "lua >= 5.1, < 5.5" }

-- The files that every host runs; `make check` compares. (The type is not
-- "builtin": that one takes along whatever else a folder lua/ has.)
build = {
  type = "none",
  install = { lua = {
    ["resty.rlock"] = "lua/resty/rlock.lua",
    ["rlock.answer"] = "lua/rlock/answer.lua",
    ["rlock.backoff"] = "lua/rlock/backoff.lua",
    ["rlock.ballot"] = "lua/rlock/ballot.lua",
    ["rlock.client"] = "lua/rlock/client.lua",
    ["rlock.colon"] = "lua/rlock/colon.lua",
    ["rlock.deadline"] = "lua/rlock/deadline.lua",
    ["rlock.errors"] = "lua/rlock/errors.lua",
    ["rlock.expiry"] = "lua/rlock/expiry.lua",
    ["rlock.flight"] = "lua/rlock/flight.lua",
    ["rlock.grant"] = "lua/rlock/grant.lua",
    ["rlock.heap"] = "lua/rlock/heap.lua",
    ["rlock.host.ngx"] = "lua/rlock/host/ngx.lua",
    ["rlock.host.ngx.calls"] = "lua/rlock/host/ngx/calls.lua",
    ["rlock.host.ngx.clock"] = "lua/rlock/host/ngx/clock.lua",
    ["rlock.host.ngx.guard"] = "lua/rlock/host/ngx/guard.lua",
    ["rlock.host.ngx.home"] = "lua/rlock/host/ngx/home.lua",
    ["rlock.host.ngx.pool"] = "lua/rlock/host/ngx/pool.lua",
    ["rlock.host.ngx.resp"] = "lua/rlock/host/ngx/resp.lua",
    ["rlock.host.ngx.socket"] = "lua/rlock/host/ngx/socket.lua",
    ["rlock.host.ngx.subscriber"] = "lua/rlock/host/ngx/subscriber.lua",
    ["rlock.host.ngx.tasks"] = "lua/rlock/host/ngx/tasks.lua",
    ["rlock.joint"] = "lua/rlock/joint.lua",
    ["rlock.latch"] = "lua/rlock/latch.lua",
    ["rlock.line"] = "lua/rlock/line.lua",
    ["rlock.lock"] = "lua/rlock/lock.lua",
    ["rlock.multi"] = "lua/rlock/multi.lua",
    ["rlock.naming"] = "lua/rlock/naming.lua",
    ["rlock.node"] = "lua/rlock/node.lua",
    ["rlock.permits"] = "lua/rlock/permits.lua",
    ["rlock.policy"] = "lua/rlock/policy.lua",
    ["rlock.policy.fair"] = "lua/rlock/policy/fair.lua",
    ["rlock.policy.fair_readwrite"] = "lua/rlock/policy/fair_readwrite.lua",
    ["rlock.policy.fenced"] = "lua/rlock/policy/fenced.lua",
    ["rlock.policy.latch"] = "lua/rlock/policy/latch.lua",
    ["rlock.policy.mutex"] = "lua/rlock/policy/mutex.lua",
    ["rlock.policy.permits"] = "lua/rlock/policy/permits.lua",
    ["rlock.policy.readwrite"] = "lua/rlock/policy/readwrite.lua",
    ["rlock.policy.reentrant"] = "lua/rlock/policy/reentrant.lua",
    ["rlock.policy.semaphore"] = "lua/rlock/policy/semaphore.lua",
    ["rlock.policy.shared"] = "lua/rlock/policy/shared.lua",
    ["rlock.policy.simple"] = "lua/rlock/policy/simple.lua",
    ["rlock.policy.spin"] = "lua/rlock/policy/spin.lua",
    ["rlock.quorum"] = "lua/rlock/quorum.lua",
    ["rlock.remote"] = "lua/rlock/remote.lua",
    ["rlock.requests"] = "lua/rlock/requests.lua",
    ["rlock.script"] = "lua/rlock/script.lua",
    ["rlock.script.compiler"] = "lua/rlock/script/compiler.lua",
    ["rlock.script.differences"] = "lua/rlock/script/differences.lua",
    ["rlock.script.emit"] = "lua/rlock/script/emit.lua",
    ["rlock.script.expression"] = "lua/rlock/script/expression.lua",
    ["rlock.script.lexer"] = "lua/rlock/script/lexer.lua",
    ["rlock.script.parser"] = "lua/rlock/script/parser.lua",
    ["rlock.script.sandbox"] = "lua/rlock/script/sandbox.lua",
    ["rlock.script.scope"] = "lua/rlock/script/scope.lua",
    ["rlock.script.source"] = "lua/rlock/script/source.lua",
    ["rlock.seal"] = "lua/rlock/seal.lua",
    ["rlock.semaphore"] = "lua/rlock/semaphore.lua",
    ["rlock.session"] = "lua/rlock/session.lua",
    ["rlock.url"] = "lua/rlock/url.lua",
    ["rlock.voter"] = "lua/rlock/voter.lua",
    ["rlock.wakeup"] = "lua/rlock/wakeup.lua",
    ["rlock.watchdog"] = "lua/rlock/watchdog.lua",
  } },
}
