/*
 * A connected, non-blocking socket and its encryption.
 */
#include "stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

/* The result of a system call on the socket. */
static ssize_t result_of(ssize_t n)
{
    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return 0;
    return uv_translate_sys_error(errno);
}

ssize_t rl_stream_read(rl_stream *self, void *to, size_t size)
{
    ssize_t n;

    if (self->tls != NULL)
        return rl_tls_read(self->tls, to, size);
    n = read(self->fd, to, size);
    return n == 0 ? UV_EOF : result_of(n);
}

ssize_t rl_stream_write(rl_stream *self, const void *from, size_t size)
{
    if (self->tls != NULL)
        return rl_tls_write(self->tls, from, size);
    return result_of(write(self->fd, from, size));
}

const char *rl_stream_error(const rl_stream *self, int err)
{
    const char *reason = self->tls != NULL ? rl_tls_reason() : NULL;

    if (reason != NULL)
        return reason;
    return err == UV_EOF ? "server closed the connection" : uv_strerror(err);
}

int rl_stream_has_more(const rl_stream *self)
{
    char byte;

    return self->tls == NULL && recv(self->fd, &byte, 1, MSG_PEEK) == 1;
}

void rl_stream_linger(const rl_stream *self, int is_orderly)
{
    struct linger linger = { .l_onoff = !is_orderly, .l_linger = 0 };

    setsockopt(self->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

int rl_stream_address(const rl_stream *self, char *to, size_t size)
{
    struct sockaddr_storage at;
    socklen_t length = sizeof(at);

    if (getsockname(self->fd, (struct sockaddr *)&at, &length) != 0)
        return -1;
    if (at.ss_family == AF_INET)
        return uv_ip4_name((struct sockaddr_in *)&at, to, size);
    if (at.ss_family == AF_INET6)
        return uv_ip6_name((struct sockaddr_in6 *)&at, to, size);
    return -1;
}

void rl_stream_close(rl_stream *self)
{
    rl_tls_close(self->tls);
    self->tls = NULL;
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}
