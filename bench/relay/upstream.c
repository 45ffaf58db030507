/* A child of constant, tiny cost: llama-server's wire without a model, for measuring relays.
 *
 *     upstream SOCKET
 *
 * Epoll, one thread. A body's "max_tokens" says how many chunks a stream has, its "seed" how many
 * microseconds lie between two of them; 0 sends all at once. "/close" in a body's "user" closes the
 * connection after the reply, unannounced, as a child does whose keep-alive ran out.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 8192, REQUEST_BYTES = 1 << 16, EVENTS = 512, REPLY_BYTES = 4096 };

struct connection {
    int fd;
    size_t got;
    char *request;
    char *unsent;
    size_t unsent_bytes;
    long chunks_left;
    uint64_t pace_us, due_us;
    int is_completion, hangs_up;
};

static struct connection *connections[CONNECTIONS];
static int poll_fd;
static long n_streams;

static const char JSON_HEAD[] =
    "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
    "Content-Length: %zu\r\nKeep-Alive: timeout=5, max=100\r\n\r\n%s";
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    "Transfer-Encoding: chunked\r\nX-Accel-Buffering: no\r\nKeep-Alive: timeout=5, max=100\r\n\r\n";
static const char CHAT_EVENT[] =
    "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\" word\"}}],"
    "\"created\":1790000000,\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"model\":\"m\","
    "\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\"}\n\n";
static const char CHAT_END[] =
    "data: {\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}],"
    "\"created\":1790000000,\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"model\":\"m\","
    "\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\"}\n\n"
    "data: {\"choices\":[],\"created\":1790000000,"
    "\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"model\":\"m\","
    "\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\","
    "\"usage\":{\"completion_tokens\":1,\"prompt_tokens\":1,\"total_tokens\":2,"
    "\"prompt_tokens_details\":{\"cached_tokens\":0}},"
    "\"timings\":{\"cache_n\":0,\"prompt_n\":1,\"prompt_ms\":1.0,\"predicted_n\":1,"
    "\"predicted_ms\":1.0}}\n\ndata: [DONE]\n\n";
static const char EMBEDDING[] =
    "{\"model\":\"m\",\"object\":\"list\",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":3},"
    "\"data\":[{\"embedding\":[0.125,-0.25,0.5,0.0625],\"index\":0,\"object\":\"embedding\"}]}";

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void drop(struct connection *c) {
    if (c->chunks_left > 0) n_streams--;
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->request);
    free(c->unsent);
    free(c);
}

static void watch(struct connection *c, int operation, uint32_t what) {
    struct epoll_event event = {.events = what, .data.fd = c->fd};
    epoll_ctl(poll_fd, operation, c->fd, &event);
}

/* 0, or -1 once the connection is dropped. */
static int flush_unsent(struct connection *c) {
    while (c->unsent_bytes) {
        ssize_t sent = send(c->fd, c->unsent, c->unsent_bytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) {
                watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
                return 0;
            }
            drop(c);
            return -1;
        }
        c->unsent_bytes -= (size_t)sent;
        memmove(c->unsent, c->unsent + sent, c->unsent_bytes);
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    return 0;
}

static int put(struct connection *c, const char *bytes, size_t n) {
    if (!c->unsent_bytes) {
        ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent == (ssize_t)n) return 0;
        if (sent < 0 && errno != EAGAIN) {
            drop(c);
            return -1;
        }
        if (sent > 0) bytes += sent, n -= (size_t)sent;
    }
    c->unsent = realloc(c->unsent, c->unsent_bytes + n);
    memcpy(c->unsent + c->unsent_bytes, bytes, n);
    c->unsent_bytes += n;
    return flush_unsent(c);
}

static size_t chunked(char *to, const char *event, size_t n) {
    size_t at = (size_t)sprintf(to, "%zx\r\n", n);
    memcpy(to + at, event, n);
    memcpy(to + at + n, "\r\n", 2);
    return at + n + 2;
}

static int finish(struct connection *c) {
    char end[REPLY_BYTES];
    size_t n = chunked(end, CHAT_END, sizeof CHAT_END - 1);
    memcpy(end + n, "0\r\n\r\n", 5);
    n_streams--;
    if (put(c, end, n + 5)) return -1;
    if (c->hangs_up) {
        drop(c);
        return -1;
    }
    return 0;
}

/* Sends what is due; -1 once the connection is dropped. */
static int go_on(struct connection *c) {
    char one[REPLY_BYTES];
    size_t n = chunked(one, CHAT_EVENT, sizeof CHAT_EVENT - 1);
    while (c->chunks_left > 0 && (!c->pace_us || c->due_us <= now_us())) {
        if (put(c, one, n)) return -1;
        c->due_us += c->pace_us;
        if (--c->chunks_left == 0) return finish(c);
    }
    return 0;
}

static int reply_json(struct connection *c, const char *json) {
    char reply[REPLY_BYTES];
    int n = snprintf(reply, sizeof reply, JSON_HEAD, strlen(json), json);
    if (put(c, reply, (size_t)n)) return -1;
    if (c->hangs_up) {
        drop(c);
        return -1;
    }
    return 0;
}

/* The last member of that name counts, as in llama-server. */
static long member(const char *body, const char *name, long otherwise) {
    long value = otherwise;
    for (const char *at = body; (at = strstr(at, name)); at += strlen(name))
        value = strtol(at + strlen(name) + (at[strlen(name)] == ':'), NULL, 10);
    return value;
}

static int answer(struct connection *c, const char *target, const char *body) {
    c->hangs_up = strstr(body, "/close") != NULL;
    if (strncmp(target, "/v1/chat/completions", 20) && strncmp(target, "/completion", 11)) {
        if (!strncmp(target, "/tokenize", 9)) return reply_json(c, "{\"tokens\":[1,2,3]}");
        if (!strncmp(target, "/v1/embeddings", 14)) return reply_json(c, EMBEDDING);
        if (!strncmp(target, "/slots", 6)) return reply_json(c, "[]");
        return reply_json(c, "{\"status\":\"ok\"}");
    }
    c->chunks_left = member(body, "\"n_predict\"", member(body, "\"max_tokens\"", 16));
    c->pace_us = (uint64_t)member(body, "\"seed\"", 0);
    c->due_us = now_us() + c->pace_us;
    n_streams++;
    if (put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1)) return -1;
    return go_on(c);
}

static void serve(struct connection *c) {
    for (;;) {
        ssize_t got = recv(c->fd, c->request + c->got, REQUEST_BYTES - 1 - c->got, 0);
        if (got <= 0) {
            if (got < 0 && errno == EAGAIN) break;
            drop(c);
            return;
        }
        c->got += (size_t)got;
    }
    c->request[c->got] = 0;
    char *body = strstr(c->request, "\r\n\r\n");
    if (!body) return;
    body += 4;
    char *length = strcasestr(c->request, "content-length:");
    size_t wanted = length && length < body ? strtoul(length + 15, NULL, 10) : 0;
    if (c->got < (size_t)(body - c->request) + wanted) return;
    c->got = 0;
    answer(c, strchr(c->request, ' ') + 1, body);
}

static void take(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= CONNECTIONS) {
            close(fd);
            continue;
        }
        struct connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->request = malloc(REQUEST_BYTES);
        connections[fd] = c;
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
}

/* Milliseconds until the next chunk of any stream is due. */
static int patience_ms(void) {
    if (!n_streams) return 1000;
    uint64_t next = UINT64_MAX, now = now_us();
    for (int fd = 0; fd < CONNECTIONS; fd++)
        if (connections[fd] && connections[fd]->chunks_left > 0 && connections[fd]->due_us < next)
            next = connections[fd]->due_us;
    return next <= now ? 0 : (int)((next - now + 999) / 1000);
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, argv[1]);
    unlink(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror(argv[1]);
        return 1;
    }
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = epoll_wait(poll_fd, events, EVENTS, patience_ms());
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                take(listener);
            } else if (connections[fd]) {
                if (events[i].events & EPOLLOUT && flush_unsent(connections[fd])) continue;
                if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) serve(connections[fd]);
            }
        }
        for (int fd = 0; n_streams && fd < CONNECTIONS; fd++)
            if (connections[fd] && connections[fd]->chunks_left > 0) go_on(connections[fd]);
    }
}
