// SPDX-License-Identifier: Apache-2.0
// The configuration. config_load() merges flags, environment, file and defaults into one immutable
// struct; in this list, each source overrides those after it. settings.def is the table of keys.
// Only the file can have buckets[] and rules[].
//
// Everything that a struct config points at lives as long as the struct. It never changes after
// config_load(), so any thread may read it. Only src/commands, src/cli and src/server read it; the
// other folders of src have option structs of their own.
//
// An error is a line `WHERE: error: TEXT`, where WHERE is FILE:LINE:COL, `env NAME` or `--KEY`. At
// most 20 errors are listed. A line with `warning:` does not make config_load() fail.
#ifndef FOREBAY_CONFIG_CONFIG_H
#define FOREBAY_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

// --- Types of values -----------------------------------------------------------------------------

// A size in bytes, or a share in percent. If `percent` is 0, `bytes` is valid; otherwise `percent`
// is 1 to 100.
struct config_size {
    uint64_t bytes;
    unsigned percent;
};

struct config_texts {
    const char *const *items;
    unsigned count;
};

enum config_listen_kind {
    CONFIG_LISTEN_OFF, // admin.listen: off
    CONFIG_LISTEN_TCP,
    CONFIG_LISTEN_TLS,
    CONFIG_LISTEN_UNIX
};

struct config_listen {
    enum config_listen_kind kind;
    const char *text; // the address as the setting has it
    const char
        *host; // numeric address without brackets ("127.0.0.1", "::1"); NULL for unix and off
    const char *path; // only for a unix socket; otherwise NULL
    uint16_t port;    // 0: the kernel chooses one
    bool loopback;    // also true for a unix socket
    bool inherited;   // `fd` is a listening socket inherited by LISTEN_FDS
    bool owns_name;   // an inherited unix socket whose file this process removes when it ends
    int fd;
};
#define CONFIG_INHERITED_MAX 16

struct config_listens {
    const struct config_listen *items;
    unsigned count; // at least 1
};

// Enums for the settings of kind CHOICE. Each has its values in the order of the words in
// settings.def.
enum config_listen_plaintext { CONFIG_PLAINTEXT_LOOPBACK, CONFIG_PLAINTEXT_NETWORK };
enum config_unix_mode { CONFIG_UNIX_0600, CONFIG_UNIX_0660, CONFIG_UNIX_0666 };
enum config_addressing {
    CONFIG_ADDRESSING_AUTO,
    CONFIG_ADDRESSING_PATH,
    CONFIG_ADDRESSING_VIRTUAL
};
enum config_credentials_source {
    CONFIG_CREDENTIALS_AUTO,
    CONFIG_CREDENTIALS_CONFIG,
    CONFIG_CREDENTIALS_ENV,
    CONFIG_CREDENTIALS_IRSA,
    CONFIG_CREDENTIALS_PROFILE,
    CONFIG_CREDENTIALS_CONTAINER,
    CONFIG_CREDENTIALS_IMDS,
    CONFIG_CREDENTIALS_ANONYMOUS
};
// config_load() replaces AUTO by OPEN or VERIFY.
enum config_auth_mode { CONFIG_AUTH_AUTO, CONFIG_AUTH_OPEN, CONFIG_AUTH_VERIFY };
enum config_sts_relay { CONFIG_STS_OFF, CONFIG_STS_LOOPBACK, CONFIG_STS_ON };
enum config_policy { CONFIG_POLICY_EPOCH, CONFIG_POLICY_LRU };
enum config_verify { CONFIG_VERIFY_PAGE_IN, CONFIG_VERIFY_ALWAYS };
enum config_client_directives {
    CONFIG_DIRECTIVES_IGNORE,
    CONFIG_DIRECTIVES_REVALIDATE,
    CONFIG_DIRECTIVES_ALL
};
enum config_disk_failure { CONFIG_DISK_FAILURE_PASS, CONFIG_DISK_FAILURE_FAIL };
enum config_io_engine { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_THREADS };
// log.level has no enum here: its values are those of enum log_level (base/log.h).
// config_load() replaces AUTO of log.format by TEXT or JSON.
enum config_log_format { CONFIG_LOG_AUTO, CONFIG_LOG_TEXT, CONFIG_LOG_JSON };
// config_load() replaces AUTO by TEXT or JSON. After AUTO, the order is that of enum
// proxy_access_log_format.
enum config_access_log_format {
    CONFIG_ACCESS_LOG_AUTO,
    CONFIG_ACCESS_LOG_JSON,
    CONFIG_ACCESS_LOG_S3,
    CONFIG_ACCESS_LOG_TEXT
};
// log.keys has no enum here: its values are those of enum log_keys (base/log.h).
enum config_freshness { CONFIG_FRESHNESS_TTL, CONFIG_FRESHNESS_IMMUTABLE, CONFIG_FRESHNESS_STRICT };

// The fields of an entry of a list, as the file has them. A field inside a mapping has a name with
// a dot: "credentials.access_key_file".
struct config_pair {
    const char *name, *value;
};

struct config_entry {
    const struct config_pair *items;
    unsigned count;
};

// The origin of one bucket: an entry of `buckets:` in the file. If a member is NULL or not set, the
// setting of origin.* or credentials.* applies in its place.
enum config_bucket_kind { CONFIG_BUCKET_S3, CONFIG_BUCKET_DIRECTORY };

struct config_bucket {
    const char *name;
    enum config_bucket_kind kind;
    // S3: the bucket's name at the origin; `name` unless the file says otherwise
    const char *origin_bucket;
    const char *directory; // DIRECTORY: absolute path
    const char *endpoint;  // S3; NULL = origin.endpoint
    const char *region;    // NULL = origin.region
    bool has_addressing;
    enum config_addressing addressing;
    bool anonymous;              // `credentials: anonymous`
    const char *access_key_file; // if all three files are NULL, credentials.* applies
    const char *secret_key_file;
    const char *session_token_file;
    bool requester_pays; // the owner of Forebay's keys pays for requests
    const char *source;  // place of the entry, "FILE:LINE:COL"
    struct config_entry fields;
};

#define CONFIG_LIMITED_RULES_MAX 21u // how many rules may have a pin or a share
#define CONFIG_PRIORITY_NORMAL 5u

// A rule. The first rule whose `match` fits BUCKET/KEY applies. This room checks the syntax of
// `match`, and the proxy room matches it: `*` any bytes except '/', `**` any bytes, `?` one byte
// except '/', `{a,b}` alternatives (not nested), `\` quotes the next byte. If a rule in the file
// lacks a value, it gets that of the setting with the same name.
struct config_rule {
    const char *match;
    bool cache;
    unsigned freshness; // enum config_freshness
    uint64_t ttl_ms;
    uint64_t list_ttl_ms;
    uint64_t stale_if_error_ms;
    uint64_t block_size_bytes;
    uint64_t max_object_size_bytes; // 0 = no limit
    uint64_t readahead_bytes;       // 0: no read-ahead
    unsigned priority;              // 0..9
    bool pin;
    unsigned share_percent; // 1..100; 0 = no limit. Not with a pin
    const char *source;     // "FILE:LINE:COL", for logs and `explain`
    struct config_entry fields;
};

// --- The result ----------------------------------------------------------------------------------

// The C type of a setting's field, by the KIND in its row.
#define CONFIG_TYPE_TEXT const char * // NULL if empty; auto is resolved unless noted below
// Path of a file that exists, is readable, and is closed to others. NULL if empty.
#define CONFIG_TYPE_SECRET_FILE const char *
#define CONFIG_TYPE_TEXTS struct config_texts
#define CONFIG_TYPE_LISTENS struct config_listens
#define CONFIG_TYPE_ADDRESS struct config_listen
#define CONFIG_TYPE_CHOICE unsigned // an enum above
#define CONFIG_TYPE_BOOL bool
#define CONFIG_TYPE_MS uint64_t
#define CONFIG_TYPE_BYTES uint64_t
#define CONFIG_TYPE_BLOCK_SIZE uint64_t // a power of two
#define CONFIG_TYPE_BYTES_AUTO uint64_t // auto is resolved
#define CONFIG_TYPE_SIZE struct config_size
#define CONFIG_TYPE_RATE uint64_t
#define CONFIG_TYPE_PERCENT unsigned
#define CONFIG_TYPE_COUNT unsigned
#define CONFIG_TYPE_COUNT_AUTO unsigned // `workers`: auto is resolved; io.threads: 0 is auto
#define CONFIG_TYPE_RATIO double

#define CONFIG_WORKERS_MAX 64u // the maximum in the row of `workers`

// When config_load() returns, these fields have final values: auth_mode, log_format and
// access_log_format (never AUTO), workers (at least 1), limits_max_buffer_bytes, cache_dir (an
// absolute path, which may not exist yet), admin_socket (a path; NULL: off). origin_region may
// still be the text "auto". access_log_path is "stdout", "off" or a path.
struct config {
#define SETTING(field, kind, key, default_text, accepts, live, help) CONFIG_TYPE_##kind field;
#include "config/settings.def"
#undef SETTING
    const struct config_bucket *buckets;
    unsigned bucket_count;
    const struct config_rule *rules;
    unsigned rule_count;
    struct config_rule default_rule; // for keys that no rule matches
    const char *file;                // the file that was read; NULL: none
    bool is_default_file;        // nobody named the file: it is CONFIG_DEFAULT_FILE, which exists
    uint64_t memory_limit_bytes; // the cgroup's limit; 0 if it is not below the machine's memory
    // listening socket that was passed in and replaces admin.listen; 0: none
    int admin_inherited_fd;
    bool admin_socket_auto; // admin.socket is auto, so it is no error if opening the socket fails
    struct config_private *private_;
};

#define CONFIG_DEFAULT_FILE "/etc/forebay/forebay.yaml"

// Reads flags, environment and file. The flags are `-c FILE`, `--KEY VALUE` and `--KEY=VALUE` in
// argv[0] to argv[argc - 1], without the names of program and subcommand. The file is that of -c,
// else that of FOREBAY_CONFIG, else CONFIG_DEFAULT_FILE if it exists.
// On ERR_OK, the caller must release *ret_config with config_free(), and `ret_errors` may have
// warnings. On ERR_INVALID, `ret_errors` has the errors and *ret_config is unchanged.
enum err config_load(int argc, char **argv, struct config **ret_config,
                     struct buf *ret_errors) MUST_USE;
// Like config_load(), for a process that only needs the server's address. Does not check the files
// that only a server reads, because this process's user may lack the permission to read them.
enum err config_load_client(int argc, char **argv, struct config **ret_config,
                            struct buf *ret_errors) MUST_USE;
// Loads a configuration that config_load_client() refuses, but only the settings that locate the
// admin port: admin.listen, admin.socket and cache.dir. Every other setting has its default, and so
// has each of these if its value is invalid. *ret_is_file_unread is true if there is a file that
// cannot be read as YAML. The caller releases the result with config_free().
struct config *config_load_admin(int argc, char **argv, bool *ret_is_file_unread);
void config_free(struct config *config); // accepts NULL

// --- The table of settings, and the sources of values
// ---------------------------------------------

struct config_setting {
    const char *key, *default_text, *accepts, *help;
    const char *kind; // "TEXT", "MS", ...
    bool live;        // a reload applies a new value
};

unsigned config_setting_count(void);
const struct config_setting *config_setting(unsigned i);

// The lists buckets[] and rules[], which only the file can have, and the fields of their entries.
// `default_text` may be the key of a setting, whose value applies then.
struct config_field {
    const char *list, *name, *accepts, *default_text, *help;
};
struct config_list {
    const char *name, *help, *example; // the example has three lines
};
unsigned config_field_count(void);
struct config_field config_field(unsigned i);
const struct config_list *config_list(unsigned i); // NULL: there is no further one
// Returns the list of a key such as "rules", "rules.match" or "rules[].match"; NULL if it has none.
const struct config_list *config_list_of(struct span key);

// settings_suggest() returns the word of `candidates` that is most like `word`.
// settings_suggest_key() returns the key or section that is most like `key`. Both return NULL if
// nothing is similar.
const char *settings_suggest(struct span word, const char *const *candidates, unsigned count);
const char *settings_suggest_key(struct span key);
// Writes "FOREBAY_CACHE_SIZE" for "cache.size"; `ret_name` has room for CONFIG_NAME_MAX bytes.
#define CONFIG_NAME_MAX 64
void config_environment_name(const char *key, char *ret_name);
// config_value_text() returns the value in force of row i, spelt as in the file.
// config_source_text() returns its source: "default", "FILE:LINE:COL", "env NAME" or "--KEY".
const char *config_value_text(const struct config *config, unsigned i);
const char *config_source_text(const struct config *config, unsigned i);

// Calls on_changed() with the key of each setting that differs between two loads, and with "rules"
// or "buckets" if that list differs. `live` is true if a reload applies the new value, as it does
// for both lists.
void config_compare(const struct config *was, const struct config *now,
                    void (*on_changed)(void *ctx, const char *key, bool live), void *ctx);

// Parses "64MiB", "2GB" or a number of bytes. If it returns false, ret_why (CONFIG_WHY_MAX bytes)
// has the reason.
#define CONFIG_WHY_MAX 512
bool config_value_parse_bytes(struct span s, uint64_t *ret_bytes, char *ret_why);

// Renders the table as a commented sample file, as a JSON Schema, as a Markdown table.
void config_render_sample(struct buf *out);
void config_render_schema(struct buf *out);
void config_render_docs(struct buf *out);

// Parse a duration, or a rate such as "200MiB/s", in the form that settings have. If they return
// false, ret_why (CONFIG_WHY_MAX bytes) describes the expected form.
bool config_value_parse_ms(struct span s, uint64_t *ret_ms, char *ret_why); // "250ms" "30s" "12h"
bool config_value_parse_rate(struct span s, uint64_t *ret_bytes_per_s, char *ret_why);

#endif
