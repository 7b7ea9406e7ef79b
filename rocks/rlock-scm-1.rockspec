rockspec_format = "3.0"
package = "rlock"
version = "scm-1"
source = { url = "." }                  -- for `luarocks make`, at the sources
description = {
  summary = "Distributed locks in Redis, as Lua you can read and change",
  detailed = [[
    Locks, fair and read/write locks, semaphores, latches and Redlock for
    programs in Lua 5.4, with an event loop of its own. Installs the modules
    and rlockctl. For OpenResty there is lua-resty-rlock.]],
  license = "MIT",
}
supported_platforms = { "unix" }
dependencies = { "lua >= 5.4, < 5.5" }
external_dependencies = {
  UV = { header = "uv.h", library = "uv" },
  HIREDIS = { header = "hiredis/hiredis.h", library = "hiredis" },
}

-- By our Makefile: it links OpenSSL if it is installed, which a rockspec cannot
-- express. And it builds rlockctl as a binary: a Lua script would have the
-- signals, LUA_PATH and start of the lua that runs it.
build = {
  type = "make",
  build_target = "all",
  install_target = "install-program",
  build_variables = {
    CC = "$(CC)",
    CFLAGS = "$(CFLAGS)",
    WARN = "-std=c11",
    LIBFLAG = "$(LIBFLAG)",
    CPPFLAGS = "-I$(LUA_INCDIR) -I$(UV_INCDIR) -I$(HIREDIS_INCDIR)"
      .. " -I$(HIREDIS_INCDIR)/hiredis",
    LDFLAGS = "-L$(UV_LIBDIR) -Wl,-rpath,$(UV_LIBDIR)"
      .. " -L$(HIREDIS_LIBDIR) -Wl,-rpath,$(HIREDIS_LIBDIR)",
  },
  install_variables = {
    BIN = "$(BINDIR)", CMOD = "$(LIBDIR)", SHARE = "$(LUADIR)",
  },
}
