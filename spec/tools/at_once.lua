--- at_once(times, fn): calls fn(1) to fn(times), each in an nginx light thread,
--- and returns a list of their results, all of which must be true.

return function(times, fn)
  local threads, results = {}, {}
  for i = 1, times do
    threads[i] = ngx.thread.spawn(function() return pcall(fn, i) end)
  end
  for i = 1, times do
    local _, ok, result = ngx.thread.wait(threads[i])
    results[i] = ok and result or error(result)
  end
  return results
end
