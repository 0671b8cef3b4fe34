// SPDX-License-Identifier: Apache-2.0
// The credentials with which Forebay signs its requests: where they come from, and how they are
// renewed.
//
// A credential set is immutable and reference-counted. A request uses one set from signing to
// reply. credentials_chain_load() finds a set. It may block, so no worker calls it.
//
// The renewer keeps the current set for every worker. It renews the set ahead of its expiry, when
// its files change, and when a caller reports that the origin refused it. Secrets are never logged,
// and memory that had one is wiped.
#ifndef FOREBAY_ORIGIN_CREDENTIALS_CHAIN_H
#define FOREBAY_ORIGIN_CREDENTIALS_CHAIN_H

#include <stdatomic.h>

#include "base/list.h"
#include "origin/origin.h"

struct credentials_set {
    atomic_uint refs;
    bool is_anonymous;
    bool is_from_files; // The source is files, which may change at any time.
    bool is_extendable; // Stays usable after its expiry, until a renewal succeeds.
    struct sigv4_credentials keys;
    int64_t expires_at_s; // Wall clock. 0: the set does not expire.
    const char *source;   // Static text: "environment", "profile", ...
    char *region;         // The region that the source names, or NULL.
    char *memory;         // The bytes of the keys.
    size_t memory_len;
};

// Creates a set with one reference, and copies the spans. Any span may be empty. Without an access
// key the set is anonymous.
struct credentials_set *credentials_set_new(const char *source, struct span access_key,
                                            struct span secret_key, struct span session_token,
                                            int64_t expires_at_s);
struct credentials_set *credentials_set_ref(struct credentials_set *set);
void credentials_set_unref(struct credentials_set *set); // Accepts NULL.
bool credentials_set_same_keys(const struct credentials_set *a, const struct credentials_set *b);
bool credentials_set_is_expired(const struct credentials_set *set, int64_t now_s);

struct credentials_options {
    enum origin_credentials_source source;
    const char *access_key_file, *secret_key_file, *session_token_file;
    const char *region; // The region of STS. NULL: us-east-1.
    const char *ca_file;
    const char *proxy; // For STS, as in struct transfer_pool_options. It must outlive the renewer.
    // The renewer stores the expiry of the current set here; may be NULL.
    atomic_llong *expires_at_s;
};

// Loads a set from the source in `options`, or with AUTO from the first source that is configured.
// On ERR_ORIGIN_CREDENTIALS and ERR_PERMISSION, ret_why has one line.
enum err credentials_chain_load(const struct credentials_options *options,
                                struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;

// --- credentials_renewer.c -----------------------------------------------------------------------

struct credentials_renewer;
// Takes ownership of `first`. Call it before any worker uses the renewer. The options' texts must
// outlive the renewer.
struct credentials_renewer *credentials_renewer_new(struct loop *loop,
                                                    const struct credentials_options *options,
                                                    struct credentials_set **first);
void credentials_renewer_free(struct credentials_renewer *renewer); // After loop_stop().
// Returns the current set on this worker. A caller that keeps it beyond the turn takes a reference.
struct credentials_set *credentials_renewer_get(struct credentials_renewer *renewer,
                                                struct worker *w);

// Loads a set by new options, with the errors of credentials_chain_load(). Copies the texts, except
// for the region, which must outlive the renewer. May block; not on a worker.
struct credentials_update;
enum err credentials_update_new(struct credentials_renewer *renewer,
                                const struct credentials_options *options,
                                struct credentials_update **ret_update,
                                struct buf *ret_why) MUST_USE;
// Sends the new set to every worker. Takes ownership of the update.
void credentials_update_use(struct credentials_update *update);
void credentials_update_free(struct credentials_update *update); // Accepts NULL.

struct credentials_waiter {
    struct list_node node;
    // Called on the worker that asked. ERR_OK: the current set is newer than `used`, or was loaded
    // less than RENEW_AGAIN_MS ago.
    void (*done)(struct credentials_waiter *waiter, enum err err);
    enum err err;
};
// Asks for a newer set, because `used` was refused or has expired. However many callers ask, the
// source is asked at most once in RENEW_AGAIN_MS. done() runs once, never inside this call.
void credentials_renewer_ask(struct credentials_renewer *renewer, struct worker *w,
                             const struct credentials_set *used, struct credentials_waiter *waiter);
void credentials_waiter_init(struct credentials_waiter *waiter,
                             void (*done)(struct credentials_waiter *waiter, enum err err));
// After this, done() does not run.
void credentials_waiter_cancel(struct credentials_waiter *waiter);

// --- The sources; each may block -----------------------------------------------------------------

// Each returns ERR_NOT_FOUND if its source is not configured; the chain then tries the next source.
// Any other error ends the chain, with one line in ret_why.
enum err credentials_from_key_files(const struct credentials_options *options,
                                    struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
enum err credentials_from_profile(const struct credentials_options *options,
                                  struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
enum err credentials_from_web_identity(const struct credentials_options *options,
                                       const char *role_arn, const char *token_file,
                                       const char *session_name, struct credentials_set **ret_set,
                                       struct buf *ret_why) MUST_USE;
enum err credentials_from_container(struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
enum err credentials_from_instance(struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
// Runs a command line without a shell; see credentials_split_command().
enum err credentials_from_process(const char *command, struct credentials_set **ret_set,
                                  struct buf *ret_why) MUST_USE;

// --- Helpers shared by the sources ---------------------------------------------------------------

#define CREDENTIALS_FILE_MAX (1u << 20)

static inline bool credentials_text_is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}
// Removes blanks and line ends at both ends.
struct span credentials_trim_lines(struct span s);

// Reads a whole file. Errors: ERR_NOT_FOUND, ERR_PERMISSION, ERR_LIMIT and others.
enum err credentials_read_file(const char *path, struct buf *ret_text) MUST_USE;
// Wipes the bytes and frees the buffer.
void credentials_buf_done(struct buf *b);
// Splits a command line into words. Quotes and backslashes work as in a shell; nothing else is
// special. The words are NUL-terminated in `ret_storage`, which needs one byte more than the text.
// Returns false if a quote is left open, or if there are more than `max` words.
bool credentials_split_command(const char *text, char *ret_storage, char **ret_words, unsigned max,
                               unsigned *ret_count);
// Makes a set from the JSON format that credential_process, container endpoints and IMDS share.
// Returns ERR_ORIGIN_CREDENTIALS if the JSON has no usable keys.
enum err credentials_parse_json(const char *source, struct span json, bool needs_version,
                                struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
// Parses "2026-01-02T03:04:05[.frac]", followed by "Z" or an offset such as "+01:00".
bool credentials_parse_time(struct span text, int64_t *ret_s);
// Returns true if credentials may be fetched from this URL: https, or http to loopback and the
// fixed link-local addresses.
bool credentials_container_url_is_allowed(const char *url);

#endif
