--- Ends a request: with a text, or with nil, code, detail.
return function(text, code, detail)
  if text == nil then
    ngx.status = code == "usage" and 400 or 503
    text = code .. ": " .. detail
  end
  ngx.say(text)
end
