// SPDX-License-Identifier: Apache-2.0
// The keys this program itself signs with: where they come from, and how they are renewed.
//
// A credential set is immutable and counted; a request uses one set from signing to reply.
// credentials_chain_load() finds a set and may block: before the loop runs, later on the threads
// for blocking calls. The renewer holds the set in use for every worker and renews it ahead of its
// expiry, when its files change, and when a caller says that the origin refused it. No secret is
// ever logged; memory that held one is wiped.
#ifndef FOREBAY_ORIGIN_CREDENTIALS_CHAIN_H
#define FOREBAY_ORIGIN_CREDENTIALS_CHAIN_H

#include <stdatomic.h>

#include "base/list.h"
#include "origin/origin.h"

struct credentials_set {
    atomic_uint refs;
    bool is_anonymous;
    bool is_from_files; // may change without expiring
    bool is_extendable; // usable past its expiry while its source fails
    struct sigv4_credentials keys;
    int64_t expires_at_s; // wall clock; 0 = never
    const char *source;   // static text: "environment", "profile", ...
    char *region;         // what the source says, or NULL
    char *memory;         // the keys' bytes
    size_t memory_len;
};

// Copies; refs is 1. Any span may be empty but the access key of a set that is not anonymous.
struct credentials_set *credentials_set_new(const char *source, struct span access_key,
                                            struct span secret_key, struct span session_token,
                                            int64_t expires_at_s);
struct credentials_set *credentials_set_ref(struct credentials_set *set);
void credentials_set_unref(struct credentials_set *set); // NULL is fine
bool credentials_set_same_keys(const struct credentials_set *a, const struct credentials_set *b);
bool credentials_set_is_expired(const struct credentials_set *set, int64_t now_s);

struct credentials_options {
    enum origin_credentials_source source;
    const char *access_key_file, *secret_key_file, *session_token_file;
    const char *region; // for STS; NULL: us-east-1
    const char *ca_file;
    atomic_llong *expires_at_s; // the renewer says here when the set in use does; NULL: to nobody
};

// The first source that is there (AUTO), or the one named. ERR_ORIGIN_CREDENTIALS, ERR_PERMISSION;
// ret_why gets one line.
enum err credentials_chain_load(const struct credentials_options *options,
                                struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;

// --- credentials_renewer.c -----------------------------------------------------------------------

struct credentials_renewer;
// Takes `first`. Before loop_start(). The options' texts must outlive the renewer.
struct credentials_renewer *credentials_renewer_new(struct loop *loop,
                                                    const struct credentials_options *options,
                                                    struct credentials_set **first);
void credentials_renewer_free(struct credentials_renewer *renewer); // after loop_stop()
// The set in use on this worker; borrowed: ref it to keep it over a turn.
struct credentials_set *credentials_renewer_get(struct credentials_renewer *renewer,
                                                struct worker *w);

// Other options, whose set has been loaded: errors are those of credentials_chain_load(). Texts are
// copied, but for the region, which must outlive the renewer. May block; not on a worker.
struct credentials_update;
enum err credentials_update_new(struct credentials_renewer *renewer,
                                const struct credentials_options *options,
                                struct credentials_update **ret_update,
                                struct buf *ret_why) MUST_USE;
void credentials_update_use(
    struct credentials_update *update); // every worker hears of it; takes it
void credentials_update_free(struct credentials_update *update); // NULL is fine

struct credentials_waiter {
    struct list_node node;
    // On the worker that asked. ERR_OK: the set in use is another one than `used` was.
    void (*done)(struct credentials_waiter *waiter, enum err err);
    enum err err;
};
// `used` was refused or has expired: renew it, all callers together at most once in RENEW_AGAIN_MS.
// done() runs once, never inside this call.
void credentials_renewer_ask(struct credentials_renewer *renewer, struct worker *w,
                             const struct credentials_set *used, struct credentials_waiter *waiter);
void credentials_waiter_init(struct credentials_waiter *waiter,
                             void (*done)(struct credentials_waiter *waiter, enum err err));
void credentials_waiter_cancel(struct credentials_waiter *waiter); // done() does not run any more

// --- The sources; each may block -----------------------------------------------------------------

// ERR_NOT_FOUND: this source is not configured, the chain goes on. Other errors end it with
// ret_why.
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
// Runs a command line, split as a shell would split it but without one.
enum err credentials_from_process(const char *command, struct credentials_set **ret_set,
                                  struct buf *ret_why) MUST_USE;

// --- Helpers shared by the sources ---------------------------------------------------------------

#define CREDENTIALS_FILE_MAX (1u << 20)

// Whole file; ERR_NOT_FOUND, ERR_PERMISSION, ERR_LIMIT.
enum err credentials_read_file(const char *path, struct buf *ret_text) MUST_USE;
// Wipes and frees.
void credentials_buf_done(struct buf *b);
// Value of `name` in the section of an INI text; false when absent.
bool credentials_profile_value(struct span text, struct span section, const char *name,
                               struct span *ret_value);
bool credentials_profile_has_section(struct span text, struct span section);
// Words of a command line: quotes and backslashes as in a shell, nothing else is special. False: a
// quote left open or more than `max` words. Words are NUL-terminated in `ret_storage` (as long as
// the text + 1).
bool credentials_split_command(const char *text, char *ret_storage, char **ret_words, unsigned max,
                               unsigned *ret_count);
// The JSON that credential_process, container endpoints and IMDS share; ERR_ORIGIN_CREDENTIALS.
enum err credentials_parse_json(const char *source, struct span json, bool needs_version,
                                struct credentials_set **ret_set, struct buf *ret_why) MUST_USE;
// "2026-01-02T03:04:05[.frac]Z" or with +hh:mm.
bool credentials_parse_time(struct span text, int64_t *ret_s);
// May credentials be fetched from this URL: https, or http to loopback and the fixed link-local
// addresses.
bool credentials_container_url_is_allowed(const char *url);

#endif
