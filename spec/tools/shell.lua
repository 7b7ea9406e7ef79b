--- Shell commands for the test tools. They block: the tools run in every
--- interpreter of the specs, with or without tasks.

local shell = {}

--- Quotes `text` as one word of a shell command.
function shell.quote(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

--- Quotes a list of words as a shell command.
function shell.words(list)
  local quoted = {}
  for i, word in ipairs(list) do quoted[i] = shell.quote(word) end
  return table.concat(quoted, " ")
end

--- Runs `command`; returns its output, standard error included, without the
--- last newline, and whether its status was 0.
function shell.run(command)
  -- The status is part of the text: pclose() does not return it in Lua 5.1.
  local pipe = assert(io.popen("{ " .. command .. "\n} 2>&1; echo \" $?\""))
  local text = pipe:read("*a")
  pipe:close()
  local output, status = text:match("^(.-)\n? (%d+)\n$")
  return output, status == "0"
end

--- The folder of the calling file, with a trailing slash.
function shell.here()
  return debug.getinfo(2, "S").source:match("^@(.*/)") or "./"
end

--- Starts a helper process that ends with this one (see daemon.sh).
-- `words` is a shell command in which "$d" is the process's folder: `dir`, or a
-- new one if nil. Returns the folder and the pid, or nil and the process's
-- output.
function shell.daemon(dir, ready, words)
  local output, ok = shell.run(([[
    d=%s
    : "${d:=$(mktemp -d "%s/rlock-XXXXXX")}"
    echo "$d"
    setsid sh %s $PPID "$d" %s %s]]):format(
    shell.quote(dir or ""), os.getenv("TMPDIR") or "/tmp",
    shell.quote(shell.here() .. "daemon.sh"), shell.quote(ready), words))
  local folder, rest = output:match("^([^\n]*)\n(.*)$")
  if not ok or not rest then return nil, output end
  return folder, assert(tonumber(rest))
end

--- Sends `signal` to process `pid`; if `gone`, waits until it has ended.
function shell.kill(pid, signal, gone)
  local wait = [[
    while kill -0 %d 2>/dev/null; do
      case $(cat /proc/%d/stat 2>/dev/null) in *") Z "*) break ;; esac
      sleep 0.001
    done]]
  local command = ("kill -%s %d"):format(signal, pid)
  if gone then command = command .. "\n" .. wait:format(pid, pid) end
  return shell.run(command)
end

return shell
