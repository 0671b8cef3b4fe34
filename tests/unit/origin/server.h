// SPDX-License-Identifier: Apache-2.0
// A scripted HTTP server on a loopback port for the tests of this room: answers the n-th request
// with the n-th row, byte for byte, and records the requests.
#ifndef FOREBAY_TESTS_UNIT_ORIGIN_SERVER_H
#define FOREBAY_TESTS_UNIT_ORIGIN_SERVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define SERVER_ROWS_MAX 64

struct server_row {
    const char *answer; // NULL: close without an answer
    size_t len;         // 0: strlen(answer)
    bool close;         // close the connection after it
    bool reset;         // ... with RST
    const char *when;   // only for a request that contains this; else `other`
    const char *other;
};

struct server {
    int fd;
    unsigned port;
    char endpoint[64];
    pthread_t thread;
    const struct server_row *rows; // the last one repeats
    unsigned row_count;
    pthread_mutex_t mutex;
    char *requests[SERVER_ROWS_MAX]; // heads and bodies as received
    unsigned request_count, connection_count;
    int connections[SERVER_ROWS_MAX];
    pthread_t connection_threads[SERVER_ROWS_MAX];
    bool stopping;
};

void server_start(struct server *s, const struct server_row *rows, unsigned row_count);
void server_stop(struct server *s); // joins; the requests stay until server_done()
void server_done(struct server *s);
unsigned server_requests(struct server *s);
unsigned server_connections(struct server *s);
const char *server_request(struct server *s, unsigned i); // valid until server_done()

#endif
