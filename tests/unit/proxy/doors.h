// SPDX-License-Identifier: Apache-2.0
// The doors around pass-through, played: its calls of http, origin, fill, loop and a request's life
// are recorded here for a test to check. They are answered when the test says so. The linker does
// not take a function from a library if doors.c defines it, so the files under test are the
// product's own. One thread.
#ifndef FOREBAY_TESTS_PROXY_DOORS_H
#define FOREBAY_TESTS_PROXY_DOORS_H

#include "proxy/pass/pass_private.h"

#define DOORS_WRITES_MAX 1100u
#define DOORS_DEAD_MAX 8u
#define DOORS_MAIL_MAX 4096u

struct doors {
    // http: the client's side
    struct http_sink *sink; // where the client's body goes; NULL: it is not wanted yet
    bool body_paused, reply_cut;
    unsigned replies, ready_calls;
    struct http_reply reply;
    // error documents of ours
    unsigned failures;
    enum err fail_err;
    struct s3_error_detail fail_detail;
    // origin
    bool is_directory; // every origin
    const char *etag;  // of its answer; NULL: "e"
    struct origin_relay *relay;
    struct origin *relay_origin;
    struct arena *relay_arena; // of its answer
    unsigned relay_starts;
    uint64_t relay_body_length; // announced
    bool relay_running, relay_cancelled, relay_paused;
    bool upload_waits; // the relay got ERR_AGAIN
    struct origin_fetch *fetch;
    unsigned fetch_starts;
    // fill
    struct key_write *begun[DOORS_WRITES_MAX], *ending[DOORS_WRITES_MAX];
    unsigned begun_count, ending_count, ready_count, ended_count; // given; the latter two by ask.c
    unsigned open_count;                                          // keys that are held open
    struct bucket_write *bucket_begun, *bucket_ending;
    uint64_t epoch; // of every bucket
    // the report of a version to its key's home
    struct subscription *telling;
    unsigned tells;
    char told_etag[64];
    bool holds_told; // until doors_told()
    // store: that a bucket is written to
    bool is_unnoted;         // no write to one has been noted
    bool notes_hang;         // the disk keeps an earlier note waiting
    struct store_note *note; // asked for
    // loop
    struct timer *timer; // the last that was set
    struct list deferred;
    uint64_t now_us;
    struct {
        void (*fn)(void *ptr);
        void *ptr;
    } dead[DOORS_DEAD_MAX];
    unsigned dead_count;
    struct worker *current; // the sender
    struct {
        struct worker *from, *to;
        struct message *message;
    } mail[DOORS_MAIL_MAX]; // in the order in which it was sent
    unsigned mail_count;
    unsigned went; // calls of request_go()

    char told[64]; // text that a test prints in addition to a failure
};
extern struct doors doors;

void doors_open(void);  // forgets all calls
void doors_close(void); // checks that no relay runs; frees the dead

// The relay's steps. Reads bytes of the upload that are ready. ERR_AGAIN: none yet. ERR_OK without
// bytes: the end.
enum err doors_relay_upload(char *buf, size_t max, size_t *ret_len);
enum err doors_relay_head(unsigned status, int64_t length); // length -1: not announced
void doors_relay_end(enum err err);
bool doors_turn(void); // runs the deferred tasks; false: there were none
void doors_told(void); // the home has answered
// Delivers mail[i], or an earlier message from the same worker to the same one.
void doors_deliver(unsigned i);
void doors_deliver_all(void);

#endif
