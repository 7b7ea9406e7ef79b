/*
 * A server for short HTTP requests, over uv_tcp_t. Each connection has one
 * request. Idle clients do not block others: beyond MOST connections, the
 * oldest is closed.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 16, REQUEST = 4096 };

typedef struct client {
    rl_owner base;
    uv_tcp_t uv;
    uv_write_t write;
    struct client *next; /* the client that connected before this one */
    rl_server *server;   /* NULL: it is being closed */
    char *response;
    size_t used;
    char request[REQUEST];
} client;

struct rl_server {
    rl_owner base;
    uv_tcp_t uv;
    rl_loop *loop;
    int64_t id;
    client *newest;
    client *asking; /* set while the sink handles its request */
};

/* ---- clients ---- */

static void client_free(uv_handle_t *handle)
{
    client *self = handle->data;

    free(self->response);
    free(self);
}

static void client_unlink(client *self)
{
    client **at = &self->server->newest;

    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    if (self->server->asking == self)
        self->server->asking = NULL;
    self->server = NULL;
}

static void client_close(client *self)
{
    if (self->server != NULL)
        client_unlink(self);
    if (!uv_is_closing((uv_handle_t *)&self->uv))
        uv_close((uv_handle_t *)&self->uv, client_free);
}

static void client_drop(rl_owner *base)
{
    client_close((client *)base);
}

/* Reports the request to the sink, which may close the server. */
static void client_ask(client *self)
{
    rl_server *server = self->server;
    rl_event event = { .what = RL_ASKED, .id = server->id };

    self->request[strcspn(self->request, "\r\n")] = '\0';
    event.detail = self->request;
    server->asking = self;
    rl_loop_report(server->loop, &event);
    server->asking = NULL;
    if (self->response == NULL)
        client_close(self);
}

static void on_room(uv_handle_t *handle, size_t size, uv_buf_t *buffer)
{
    client *self = handle->data;

    (void)size;
    buffer->base = self->request + self->used;
    buffer->len = sizeof(self->request) - 1 - self->used;
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    client *self = stream->data;

    (void)buffer;
    if (size < 0) {
        client_close(self);
        return;
    }
    self->used += (size_t)size;
    self->request[self->used] = '\0';
    if (strstr(self->request, "\r\n\r\n") == NULL)
        return;
    uv_read_stop(stream);
    client_ask(self);
}

static void on_written(uv_write_t *write, int err)
{
    (void)err;
    client_close(write->handle->data);
}

/* ---- the server ---- */

static void limit_clients(rl_server *self)
{
    client *oldest = self->newest;
    int count = 1;

    for (; oldest->next != NULL; oldest = oldest->next)
        count++;
    if (count > MOST)
        client_close(oldest);
}

static void on_connection(uv_stream_t *stream, int err)
{
    rl_server *self = stream->data;
    client *other = err == 0 ? calloc(1, sizeof(*other)) : NULL;

    if (other == NULL || uv_tcp_init(stream->loop, &other->uv) != 0) {
        free(other);
        return;
    }
    other->base.drop = client_drop;
    other->uv.data = other;
    other->server = self;
    other->next = self->newest;
    self->newest = other;
    uv_unref((uv_handle_t *)&other->uv);
    if (uv_accept(stream, (uv_stream_t *)&other->uv) != 0
        || uv_read_start((uv_stream_t *)&other->uv, on_room, on_read) != 0)
        client_close(other);
    else
        limit_clients(self);
}

static void server_free(uv_handle_t *handle)
{
    free(handle->data);
}

/* Its clients are closed, too: they point to it. */
static void server_drop(rl_owner *base)
{
    rl_server *self = (rl_server *)base;

    while (self->newest != NULL)
        client_close(self->newest);
    uv_close((uv_handle_t *)&self->uv, server_free);
}

int rl_server_open(rl_server **out, rl_loop *loop, int64_t id, int port)
{
    rl_server *self = calloc(1, sizeof(*self));
    struct sockaddr_in at;
    int err = UV_ENOMEM;

    if (self == NULL)
        goto err0;
    err = uv_tcp_init(rl_loop_uv(loop), &self->uv);
    if (err != 0)
        goto err1;
    self->base.drop = server_drop;
    self->uv.data = self;
    self->loop = loop;
    self->id = id;
    err = uv_ip4_addr("127.0.0.1", port, &at);
    if (err == 0)
        err = uv_tcp_bind(&self->uv, (const struct sockaddr *)&at, 0);
    if (err == 0)
        err = uv_listen((uv_stream_t *)&self->uv, MOST, on_connection);
    if (err != 0)
        goto err2;
    uv_unref((uv_handle_t *)&self->uv);
    *out = self;
    return 0;

err2:
    server_drop(&self->base); /* libuv has the handle */
    return err;
err1:
    free(self);
err0:
    return err;
}

int rl_server_answer(rl_server *self, const char *text, size_t length)
{
    client *other = self->asking;
    uv_buf_t buffer;

    if (other == NULL || length == 0)
        return UV_EINVAL;
    self->asking = NULL;
    other->response = malloc(length);
    if (other->response == NULL)
        return UV_ENOMEM;
    memcpy(other->response, text, length);
    buffer = uv_buf_init(other->response, (unsigned)length);
    if (uv_write(&other->write, (uv_stream_t *)&other->uv, &buffer, 1,
                 on_written)
        != 0)
        client_close(other);
    return 0;
}

void rl_server_close(rl_server *self)
{
    if (self != NULL)
        server_drop(&self->base);
}
