#include "openssl.h"

#include <stdio.h>
#include <uv.h>

#if !defined(RL_TLS)

int rl_openssl_load(char *why, size_t size)
{
    snprintf(why, size,
             "TLS needs OpenSSL, which was not found when rlock was built");
    return UV_ENOTSUP;
}

#elif defined(__linux__)

#include <dlfcn.h>
#include <string.h>

#define TEXT_OF(number) #number
#define LIBRARY(version) "libssl.so." TEXT_OF(version)
#ifndef OPENSSL_SHLIB_VERSION /* before 3.0 */
#define OPENSSL_SHLIB_VERSION 1.1
#endif

struct rl_openssl rl_openssl;

/* Sets a function of the table. libssl also leads to libcrypto's functions. */
static int find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);

    if (found == NULL)
        return -1;
    memcpy(function, &found, sizeof(found)); /* ISO C forbids a cast */
    return 0;
}

static int find_all(void *library)
{
    int missing = 0;

#define FIND(name) missing |= find(library, #name, &rl_openssl.name##_);
    RL_OPENSSL_FUNCTIONS(FIND)
#undef FIND
    return missing;
}

int rl_openssl_load(char *why, size_t size)
{
    static int is_loaded;
    void *library;

    if (is_loaded)
        return 0;
    library = dlopen(LIBRARY(OPENSSL_SHLIB_VERSION), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || find_all(library) != 0) {
        snprintf(why, size, "TLS needs OpenSSL: %.200s", dlerror());
        return UV_ENOTSUP;
    }
    is_loaded = 1;
    return 0;
}

#else

int rl_openssl_load(char *why, size_t size)
{
    (void)why;
    (void)size;
    return 0;
}

#endif
