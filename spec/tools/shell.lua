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

--- The path of a C program of this folder, quoted.
function shell.tool(name)
  local folder = os.getenv("RLOCK_TOOLS")
    or (os.getenv("B") or "build") .. "/spec"
  return shell.quote(folder .. "/" .. name)
end

--- Starts a helper process that ends with this one (see daemon.c).
--- `words` is a shell command in which "$d" is the process's folder: `dir`, or
--- a new one if nil. Returns the folder and the pid, or nil and the process's
--- output.
function shell.daemon(dir, ready, words)
  local output, ok = shell.run(([[
    d=%s
    : "${d:=$(mktemp -d "%s/rlock-XXXXXX")}"
    echo "$d"
    %s start $PPID "$d" %s %s]]):format(
    shell.quote(dir or ""), os.getenv("TMPDIR") or "/tmp", shell.tool "daemon",
    shell.quote(ready), words))
  local folder, rest = output:match("^([^\n]*)\n(.*)$")
  if not ok or not rest then return nil, output end
  return folder, assert(tonumber(rest))
end

--- Sends `signal`, a name or a number, to process `pid`.
function shell.kill(pid, signal)
  return shell.run(("kill -%s %d"):format(signal, pid))
end

--- Kills process `pid` and waits until it has ended.
function shell.finish(pid)
  return shell.run(("%s kill 9 %d"):format(shell.tool "daemon", pid))
end

--- Kills a daemon, if it runs, and waits until it has ended.
---@param self table its `pid` and `folder`
function shell.kill_daemon(self)
  if not self.pid then return end
  os.remove(self.folder .. "/pid")
  shell.finish(self.pid)
  self.pid = nil
end

return shell
