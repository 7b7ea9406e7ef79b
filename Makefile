# rlock. `make demo` and `make test` install what is missing and do the rest.
# Variables: CC CFLAGS CPPFLAGS LDFLAGS PREFIX DESTDIR; B, the build folder;
# BUILD_CC, for tools that run during a cross build;
# SHARED=1, to link shared libraries only; and PARTS, the arguments of
# spec/tools/suite for `make test` and `make test-all`.

B          ?= build
CC         ?= cc
BUILD_CC   ?= $(CC)
CFLAGS     ?= -O2 -g
LIBFLAG    ?= -shared
PREFIX     ?= /usr/local
PKG_CONFIG ?= pkg-config
SCDOC      ?= scdoc

# Expanded at each compilation and not before: on a fresh machine `make deps`
# installs pkg-config first.
LUA_PKG   = $(shell for p in lua5.4 lua-5.4 lua; do \
              $(PKG_CONFIG) --exists $$p && echo $$p && break; done)
TLS_PKGS  = $(shell $(PKG_CONFIG) --exists openssl && echo openssl)
EDIT      = $(shell $(PKG_CONFIG) --exists libedit && echo -ledit)
SCREEN    = $(shell $(PKG_CONFIG) --exists ncursesw \
              && $(PKG_CONFIG) --libs ncursesw)
WARN      = -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion
# -iquote: with -I, <signal.h> would be src/signal.h.
RL_CFLAGS = $(WARN) -D_POSIX_C_SOURCE=200809L $(if $(TLS_PKGS),-DRL_TLS) \
            $(if $(EDIT),-DRL_EDIT) $(if $(SCREEN),-DRL_SCREEN) -fPIC \
            -iquote src $(subst -I,-isystem ,$(shell $(PKG_CONFIG) --cflags \
            libuv hiredis $(TLS_PKGS) $(LUA_PKG)))
# On Linux, src/openssl.c loads OpenSSL when TLS is first used.
RL_LIBS   = $(or $(shell $(PKG_CONFIG) --libs libuv hiredis $(if \
              $(filter Linux,$(shell uname)),,$(TLS_PKGS))),-luv -lhiredis) \
            -ldl
LUA_LIBS  = $(or $(if $(LUA_PKG),$(shell $(PKG_CONFIG) --libs $(LUA_PKG))),\
              -llua)

# rlockctl links Lua, libuv and hiredis statically if there are archives, so
# that the one file runs on other machines. All of Lua, for C modules use it.
archive   = $(if $(SHARED),,$(firstword $(filter /%, \
              $(foreach f,lib$(1).a lib$(1)_a.a, \
              $(shell $(CC) -print-file-name=$(f))))))
carry     = $(foreach w,$(1),$(or $(strip $(if \
              $(filter -llua% -luv -lhiredis -ledit -lbsd -lmd -lncursesw \
              -ltinfo,$(w)), \
              $(call archive,$(w:-l%=%)))),$(w)))
CTL_LIBS  = -Wl,--start-group $(call carry,$(RL_LIBS)) -Wl,--end-group \
            -Wl,--whole-archive $(call carry,$(filter -llua%,$(LUA_LIBS))) \
            -Wl,--no-whole-archive $(filter-out -llua%,$(LUA_LIBS)) -lm -ldl
TERM_OBJ := $(B)/edit.o $(B)/screen.o
TERM_LIBS = $(call carry,$(EDIT) $(SCREEN) $(if $(EDIT),$(if \
            $(call archive,edit),-lbsd -lmd -ltinfo)))

LIB_SRC := $(filter-out src/main.c src/edit.c src/screen.c src/embed.c, \
             $(wildcard src/*.c))
LIB_OBJ := $(LIB_SRC:src/%.c=$(B)/%.o)
LUA_SRC := $(shell find lua -name '*.lua' ! -path 'lua/resty/*' 2>/dev/null | \
             LC_ALL=C sort)
# What make install and the rock install. rlockctl contains its own modules.
LUA_LIB := $(filter-out lua/rlockctl/%,$(LUA_SRC))
C_TESTS := $(patsubst spec/c/%.c,$(B)/spec/c/%,$(wildcard spec/c/*_test.c))

# Also in lua/resty/rlock.lua, for opm, and in debian/changelog;
# spec/tools/check compares them.
VERSION := $(shell sed -n 's/^local version = "\(.*\)"/\1/p' \
             lua/rlock/host/uv.lua)

all: $(B)/rlockctl $(B)/librlock.a $(B)/rlock/core.so  ## rlockctl and libraries

$(B)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(RL_CFLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/core.o: RL_CFLAGS += -DRL_VERSION='"$(VERSION)"'
$(B)/core.o: lua/rlock/host/uv.lua

$(B)/embed: src/embed.c
	@mkdir -p $(@D)
	$(BUILD_CC) $(RL_CFLAGS) -O1 $(LDFLAGS) -o $@ $< $(call carry,$(LUA_LIBS)) \
	  -lm -ldl

LINK = $(if $(filter $(CC),$(BUILD_CC)),$(if $(filter \
       %.a,$(call carry,$(filter -llua%,$(LUA_LIBS)))),static,shared),cross)

$(B)/embedded.c: $(B)/embed src/embed.lua $(LUA_SRC) $(sort $(dir $(LUA_SRC)))
	$(B)/embed src/embed.lua $(LINK) lua $(LUA_SRC) > $@.tmp
	mv $@.tmp $@

$(B)/embedded.o: $(B)/embedded.c src/embed.h
	$(CC) $(RL_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/librlock.a: $(LIB_OBJ)
	$(AR) rcs $@ $^

$(B)/rlockctl: $(B)/main.o $(TERM_OBJ) $(B)/embedded.o $(B)/librlock.a
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-E -o $@ $^ $(CTL_LIBS) $(TERM_LIBS)

$(B)/rlock/core.so: $(LIB_OBJ)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(LIBFLAG) -o $@ $^ $(RL_LIBS)

# Programs for tests and benchmarks only.
$(C_TESTS) $(B)/spec/c/oom: $(B)/spec/%: spec/%.c $(B)/librlock.a
	@mkdir -p $(@D)
	$(CC) $(RL_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -Wl,-E -MMD -MP \
	  -o $@ $< $(filter %.o %.a,$^) $(RL_LIBS) $(LUA_LIBS) $(MORE_LIBS)
$(B)/spec/c/oom: $(B)/embedded.o $(TERM_OBJ) src/main.c
$(B)/spec/c/oom: private MORE_LIBS = $(TERM_LIBS)

TOOLS := $(B)/spec/daemon $(B)/spec/proxy $(B)/spec/subreaper

$(TOOLS): $(B)/spec/%: spec/tools/%.c
$(B)/spec/bare: spec/bench/bare.c
$(TOOLS) $(B)/spec/bare:
	@mkdir -p $(@D)
	$(CC) $(RL_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $(RL_LIBS)

# Loaded by LD_PRELOAD, so without sanitizers.
$(B)/spec/clock.so: spec/tools/clock.c
	@mkdir -p $(@D)
	$(CC) $(RL_CFLAGS) $(CPPFLAGS) -O2 $(LIBFLAG) -o $@ $< -ldl

tools: $(TOOLS) $(B)/spec/clock.so
tests: $(C_TESTS) tools

# Targets for people. Each installs what it needs, then builds in a sub-make,
# which finds what has been installed. V=1 shows the commands.
SUB   = @$(MAKE) --no-print-directory $(if $(V),,-s)
SUITE = spec/tools/suite

deps:  ## install what is missing to build, to run and to test
	@spec/tools/deps build test

demo:  ## a lock taken, kept and handed over on a private Redis
	@spec/tools/deps build
	$(SUB) all
	$(B)/rlockctl examples/hello.lua
	@[ "$$RLOCK_URL" ] || echo "Its Redis goes on running, for your programs;" \
	  "to stop it: $(B)/rlockctl local stop"

test: deps  ## does this build work? or PARTS="unit spec/redis/fair_spec.lua"
	$(SUB) all tests
	@B=$(B) $(SUITE) $(or $(PARTS),quick)

test-all: deps  ## the whole suite: also what takes long
	$(SUB) all tests
	@B=$(B) $(SUITE) $(PARTS)

lists:  ## regenerate the list of the rock's modules
	@spec/tools/lists

check:  ## what can be said without running: style, layers, warnings
	@spec/tools/deps build test check types
	@spec/tools/check

ASAN = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
       -fno-sanitize-recover=undefined
asan-build:
	$(SUB) B=build-asan CFLAGS="$(ASAN)" all tests build-asan/spec/c/oom

asan: deps  ## what runs our C, under ASan, UBSan and LSan
	$(SUB) asan-build
	@B=build-asan RLOCK_SLOW=2 $(SUITE) core

oom: deps  ## an allocator that refuses, at every point of a run
	$(SUB) asan-build
	@B=build-asan RLOCK_SLOW=2 LIMIT=600 $(SUITE) spec/c/oom.c

VALGRIND = valgrind -q --error-exitcode=99 --leak-check=full \
           --errors-for-leak-kinds=definite,indirect,possible
valgrind:  ## the C tests under valgrind
	@spec/tools/deps build test check
	$(SUB) all tests
	@B=$(B) RUNNER="$(VALGRIND)" RLOCK_SLOW=10 $(SUITE) c

interop: deps  ## locks held against Redisson, redis-py, redsync and others
	$(SUB) all tools
	@B=$(B) spec/interop/run

soak: deps  ## what takes minutes: faults, random programs; SCRIPTS=1000
	$(SUB) all tests
	@B=$(B) V=1 JOBS=1 LIMIT=3600 RLOCK_FAILOVERS=100 RLOCK_MOVES=1000 \
	  RLOCK_ROUNDS=20000 \
	  $(if $(COMMANDS),RLOCK_COMMANDS=$(COMMANDS)) \
	  $(if $(SCRIPTS),RLOCK_SCRIPTS=$(SCRIPTS)) \
	  $(SUITE) $(or $(PARTS),soak spec/redis/failovers_spec.lua \
	  spec/redis/moves_spec.lua spec/redis/quorum_counter_spec.lua \
	  spec/openresty/counter_spec.lua spec/openresty/leaks_spec.lua \
	  nginx:spec/redis/sentinel_spec.lua)

simulate: deps  ## the client under faults; SEED=7 MINUTES=5 ZOOKEEPER=1
	$(SUB) all
	@B=$(B) spec/simulate/run $(if $(SEED),SEED=$(SEED)) \
	  $(if $(EVENTS),EVENTS=$(EVENTS)) $(if $(SENTINEL),SENTINEL=1) \
	  $(if $(CLUSTER),CLUSTER=1) $(if $(REPLICAS),REPLICAS=1) \
	  $(if $(CALM),CALM=1) $(if $(ZOOKEEPER),ZOOKEEPER=1) \
	  MINUTES=$(or $(MINUTES),$(if $(COVERAGE),10,1)) \
	  $(if $(COVERAGE),COVERAGE=1)

seeds: deps  ## fresh seeds in each mode of the simulator; MINUTES=15
	$(SUB) all tests
	@status=0; \
	for mode in "" SENTINEL=1 CLUSTER=1 REPLICAS=1 CALM=1 ZOOKEEPER=1; do \
	  echo "== $${mode:-default}"; \
	  B=$(B) spec/simulate/run SHRINK=0 MINUTES=$(or $(MINUTES),15) $$mode \
	    || status=1; \
	done; exit $$status

mutate: deps  ## do the tests notice small faults? SEED=7 COUNT=50 FILE=fair
	$(SUB) all tests
	@B=$(B) SEED="$(SEED)" COUNT="$(COUNT)" EACH="$(EACH)" FILE="$(FILE)" \
	  LEAST="$(LEAST)" RESULTS="$(RESULTS)" MINUTES="$(MINUTES)" \
	  GATE="$(GATE)" spec/tools/mutate

budget: deps  ## do locks cost no more instructions than their budget?
	@spec/tools/deps check
	$(SUB) all tools
	@B=$(B) spec/bench/budget

bench:  ## what locks cost, beside bare C; PEERS=1: beside other libraries
	@spec/tools/deps build test bench $(if $(PEERS),peers)
	$(SUB) all tools $(B)/spec/bare
	$(if $(PEERS),@B=$(B) spec/bench/peers/prepare && B=$(B) \
	  spec/bench/peers/run,B=$(B) lua5.4 spec/bench/run.lua)

rocks:  ## both rocks, packed in build/rocks, installed and used from there
	@spec/tools/deps build test rocks
	$(SUB) all tools
	@B=$(B) spec/rocks/run

# Man pages and completions, from the help texts and the README. Without scdoc
# the man pages are those of the tarball, if this is one.
PAGES = $(B)/pages/.made
MADE  = src/pages/made

pages: $(PAGES)  ## man pages and completions

$(PAGES): $(B)/rlockctl README.md $(wildcard src/pages/*)
	rm -rf $(@D)
	mkdir -p $(@D)
	$(B)/rlockctl --lua-path src/pages src/pages/write.lua $(@D)
	@if command -v $(SCDOC) >/dev/null; then \
	  for f in $(@D)/*.scd; do $(SCDOC) <$$f >$${f%.scd} || exit; done; \
	elif [ -d $(MADE) ]; then cp $(MADE)/* $(@D); \
	else echo "pages: without scdoc, only the completions are made"; exit; \
	fi; touch $@

RELEASE   = $(B)/rlock-$(VERSION)
SOURCES   = .clang-format .emmyrc.json .gitignore .luacheckrc .ci LICENSE \
            Makefile README.md debian examples lua rocks spec src

REFERENCE = $(B)/docs/rlock-$(VERSION).md

docs:  ## the reference of the library, from its comments
	@spec/tools/deps build
	$(SUB) $(REFERENCE)
	@echo "$(REFERENCE)"

$(REFERENCE): src/pages/reference.lua $(B)/rlockctl
	@mkdir -p $(@D)
	$(B)/rlockctl $< $@

# The source tree of a release, in $(RELEASE).
release:
	rm -rf $(RELEASE)
	mkdir -p $(RELEASE)
	tar -cf - --exclude=$(MADE) --exclude=examples/openresty/logs $(SOURCES) | \
	  tar -xf - -C $(RELEASE)

dist:  ## build/rlock-VERSION.tar.gz, with the man pages and the reference
	@spec/tools/deps build
	$(SUB) pages $(REFERENCE) release
	mkdir $(RELEASE)/$(MADE) $(RELEASE)/docs
	cp $(REFERENCE) $(RELEASE)/docs
	cp $(B)/pages/*.1 $(B)/pages/*.3lua $(RELEASE)/$(MADE)
	tar -czf $(RELEASE).tar.gz -C $(B) --sort=name --owner=0 --group=0 \
	  --numeric-owner --mode=go+rX,go-w rlock-$(VERSION)
	rm -rf $(RELEASE)

deb:  ## the Debian package, in build/
	@spec/tools/deps build deb
	$(SUB) release
	cd $(RELEASE) && dpkg-buildpackage -us -uc -jauto
	rm -rf $(RELEASE)

BIN   = $(DESTDIR)$(PREFIX)/bin
CMOD  = $(DESTDIR)$(PREFIX)/lib/lua/5.4
SHARE = $(DESTDIR)$(PREFIX)/share/lua/5.4
MAN   = $(DESTDIR)$(PREFIX)/share/man
BASH_COMPLETIONS = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS  = $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISH_COMPLETIONS = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

install: install-program install-pages  ## under DESTDIR and PREFIX (/usr/local)

install-program: all
	mkdir -p $(BIN) $(CMOD)/rlock \
	  $(addprefix $(SHARE)/,$(sort $(dir $(LUA_LIB:lua/%=%))))
	install -m 755 $(B)/rlockctl $(BIN)/rlockctl
	install -m 755 $(B)/rlock/core.so $(CMOD)/rlock/core.so
	@for f in $(LUA_LIB:lua/%=%); do \
	  install -m 644 lua/$$f $(SHARE)/$$f || exit 1; done

install-pages: $(PAGES)
	mkdir -p $(MAN)/man1 $(MAN)/man3 $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS) \
	  $(FISH_COMPLETIONS)
	@for s in 1 3; do for f in $(B)/pages/*.$$s $(B)/pages/*.$${s}lua; do \
	  [ ! -e $$f ] || install -m 644 $$f $(MAN)/man$$s || exit 1; done; done
	install -m 644 $(B)/pages/rlockctl.bash $(BASH_COMPLETIONS)/rlockctl
	install -m 644 $(B)/pages/_rlockctl $(ZSH_COMPLETIONS)/_rlockctl
	install -m 644 $(B)/pages/rlockctl.fish $(FISH_COMPLETIONS)/rlockctl.fish

uninstall:  ## take away what install put there
	rm -f $(BIN)/rlockctl $(CMOD)/rlock/core.so $(LUA_LIB:lua/%=$(SHARE)/%) \
	  $(MAN)/man1/rlockctl.1 $(MAN)/man1/rlockctl-*.1 $(MAN)/man3/rlock.3lua \
	  $(BASH_COMPLETIONS)/rlockctl $(ZSH_COMPLETIONS)/_rlockctl \
	  $(FISH_COMPLETIONS)/rlockctl.fish
	-@find $(CMOD)/rlock $(SHARE)/rlock -depth -type d -empty -delete 2>/dev/null

clean:  ## remove what was built
	rm -rf $(B) build-asan

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

.PHONY: all budget tools tests asan-build deps demo test test-all lists check asan \
        oom valgrind bench interop simulate seeds mutate soak rocks pages docs \
        release dist deb install install-program install-pages uninstall clean help
-include $(wildcard $(B)/*.d $(B)/spec/c/*.d)
