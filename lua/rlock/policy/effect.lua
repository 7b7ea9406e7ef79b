--- The script behind `hold:call` and `hold:transaction`: commands that run only
--- if their holds are still held. It asks the kind's own `peek`.

local effect = {}

--- Makes the server function for a kind of lock. Its keys are those of the
--- locks, then those of the commands. Its arguments are: the owner of the first
--- hold; the number of holds; the number of keys of each; the owners of the
--- others; then for each command the number of words, and the words. It replies
--- { "done", replies }; { "lost" }: nothing was changed; or { "failed", index,
--- error }: the commands before this index were executed. A replica refuses the
--- first command. Then the reply is its error, as for any other operation:
--- nothing was changed, so the client retries on the primary.
---@param peek_of_kind function server.peek of the kind; its name must differ
---  from those of the functions that it ships
function effect.guarded(peek_of_kind)
  return function(keys, args)
    ---@type any, any, any
    local count, width, at = tonumber(args[2]), tonumber(args[3]), 4
    for i = 1, count do
      local owner, own = args[1], {}
      if i > 1 then owner, at = args[at], at + 1 end
      for k = 1, width do own[k] = keys[(i - 1) * width + k] end
      local held = peek_of_kind(own, { owner })
      if held[1] ~= "held" or (tonumber(held[3]) or 0) < 1 then
        return { "lost" }
      end
    end
    local replies = {}
    while at <= #args do
      ---@type any
      local n = tonumber(args[at])
      ---@diagnostic disable-next-line: param-type-mismatch
      local reply = redis.pcall(unpack(args, at + 1, at + n))
      local fault = type(reply) == "table" and reply.err
      local refusal = fault and #replies == 0 and fault:match "READONLY .*"
      if refusal then return { err = refusal } end
      if fault then return { "failed", #replies + 1, fault } end
      replies[#replies + 1], at = reply, at + n + 1
    end
    return { "done", replies }
  end
end

return effect
