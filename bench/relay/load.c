/* Callers that cost next to nothing: keep-alive connections that ask the same thing over and over.
 *
 *     load ADDRESS CALLERS SECONDS < REQUEST
 *
 * ADDRESS is a port of 127.0.0.1 or the path of a Unix socket. Prints one line of JSON: requests,
 * errors, events ("data: {" or lines that begin with "{"), and the time to the first byte in
 * microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CALLERS = 4096, REQUEST_BYTES = 1 << 20, READ_BYTES = 1 << 18, SAMPLES = 1 << 20, HEAD_BYTES = 8192 };

struct caller {
    int fd;
    uint64_t asked_us;
    int in_body, is_chunked, heard;
    size_t head_bytes;
    long body_left;
    char head[HEAD_BYTES];
    char last[8]; /* the end of what came, for the end of a chunked reply */
};

static struct caller callers[CALLERS];
static char request[REQUEST_BYTES], buffer[READ_BYTES + 1];
static size_t request_bytes;
static const char *where;
static int poll_fd;
static long n_requests, n_errors, n_events, n_samples;
static uint32_t *samples;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static int connected(void) {
    int fd, one = 1;
    if (*where == '/') {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strncpy(address.sun_path, where, sizeof address.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address)) return -1;
        return fd;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(where))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) return -1;
    return fd;
}

static void ask(struct caller *c) {
    c->in_body = c->is_chunked = c->heard = 0;
    c->head_bytes = 0;
    c->body_left = 0;
    memset(c->last, 0, sizeof c->last);
    c->asked_us = now_us();
    if (send(c->fd, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) n_errors++;
}

static void call_again(struct caller *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = connected();
    if (c->fd < 0) {
        perror(where);
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
    ask(c);
}

static void count_events(const char *bytes, size_t n) {
    for (const char *at = bytes, *end = bytes + n; (at = memmem(at, (size_t)(end - at), "data: {", 7)); at += 7)
        n_events++;
    for (const char *at = bytes, *end = bytes + n; (at = memmem(at, (size_t)(end - at), "\n{\"", 3)); at += 3)
        n_events++;
}

/* True once the reply is whole. */
static int took_body(struct caller *c, const char *bytes, size_t n) {
    count_events(bytes, n);
    if (!c->is_chunked) return (c->body_left -= (long)n) <= 0;
    size_t kept = n < 7 ? 7 - n : 0;
    memmove(c->last, c->last + 7 - kept, kept);
    memcpy(c->last + kept, bytes + n - (7 - kept), 7 - kept);
    return !memcmp(c->last + 2, "0\r\n\r\n", 5);
}

/* Where the body begins within what came; n where it does not yet. */
static size_t took_head(struct caller *c, const char *bytes, size_t n) {
    for (size_t at = 0; at < n && c->head_bytes < HEAD_BYTES - 1; at++) {
        c->head[c->head_bytes++] = bytes[at];
        if (c->head_bytes < 4 || memcmp(c->head + c->head_bytes - 4, "\r\n\r\n", 4)) continue;
        c->head[c->head_bytes] = 0;
        c->in_body = 1;
        c->is_chunked = strcasestr(c->head, "transfer-encoding: chunked") != NULL;
        char *length = strcasestr(c->head, "content-length:");
        c->body_left = length ? strtol(length + 15, NULL, 10) : 0;
        if (memcmp(c->head + 9, "200", 3)) n_errors++;
        return at + 1;
    }
    return n;
}

static void hear(struct caller *c) {
    ssize_t got = recv(c->fd, buffer, READ_BYTES, 0);
    if (got <= 0) {
        if (c->heard || c->head_bytes) n_errors++;
        call_again(c);
        return;
    }
    if (!c->heard) {
        c->heard = 1;
        if (n_samples < SAMPLES) samples[n_samples++] = (uint32_t)(now_us() - c->asked_us);
    }
    size_t n = (size_t)got, at = c->in_body ? 0 : took_head(c, buffer, n);
    if (!c->in_body || !took_body(c, buffer + at, n - at)) return;
    n_requests++;
    if (strcasestr(c->head, "connection: close"))
        call_again(c);
    else
        ask(c);
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4 || atoi(argv[2]) > CALLERS) return 2;
    where = argv[1];
    request_bytes = fread(request, 1, sizeof request, stdin);
    samples = calloc(SAMPLES, sizeof *samples);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < atoi(argv[2]); i++) {
        callers[i].fd = -1;
        call_again(&callers[i]);
    }
    struct epoll_event events[256];
    uint64_t until_us = now_us() + (uint64_t)(atof(argv[3]) * 1e6);
    while (now_us() < until_us) {
        int n = epoll_wait(poll_fd, events, 256, 50);
        for (int i = 0; i < n; i++) hear(events[i].data.ptr);
    }
    qsort(samples, (size_t)n_samples, sizeof *samples, ascending);
    printf("{\"requests\":%ld,\"errors\":%ld,\"events\":%ld,\"first_byte_p50_us\":%u,\"first_byte_p99_us\":%u}\n",
           n_requests, n_errors, n_events, n_samples ? samples[n_samples / 2] : 0,
           n_samples ? samples[n_samples * 99 / 100] : 0);
}
