--- at_once(times, fn): calls fn(i) in so many light threads of nginx, and
--- returns what each of them returned, which must be something true.

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
