// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the config room.
//
// A load has three phases. Each phase reports as many errors as it finds. One thread; all memory is
// in the arena of the result.
//
// - Gather: collects the raw texts of file, environment and flags; the highest precedence wins.
// - Parse: turns the text of each row into the value of its field.
// - Finish: checks what involves several rows, and resolves auto.
#ifndef FOREBAY_CONFIG_PRIVATE_H
#define FOREBAY_CONFIG_PRIVATE_H

#include "base/arena.h"
#include "config/config.h"

enum setting_id {
#define SETTING(field, kind, key, default_text, accepts, live, help) SETTING_##field,
#include "config/settings.def"
#undef SETTING
    SETTING_COUNT_
};

enum setting_kind {
    KIND_TEXT,
    KIND_SECRET_FILE,
    KIND_TEXTS,
    KIND_LISTENS,
    KIND_ADDRESS,
    KIND_CHOICE,
    KIND_BOOL,
    KIND_MS,
    KIND_BYTES,
    KIND_BLOCK_SIZE,
    KIND_BYTES_AUTO,
    KIND_SIZE,
    KIND_RATE,
    KIND_PERCENT,
    KIND_COUNT,
    KIND_COUNT_AUTO,
    KIND_RATIO
};

struct setting {
    struct config_setting public_;
    enum setting_kind kind;
    size_t offset; // offset of the field in struct config, or of a rule's field in struct
                   // config_rule
};

// settings.c: returns the row with this number.
const struct setting *settings_row(unsigned id);
// Returns SETTING_COUNT_ if there is no such key.
unsigned settings_find(struct span key);
bool settings_is_list(enum setting_kind kind);

// The text of one setting, from the source with the highest precedence. `where` is NULL if no
// source has the setting.
struct raw {
    const char *const *items; // one text, or several if the row is a list
    unsigned count;
    const char *where; // "FILE:LINE:COL", "env NAME", "--KEY"
    bool from_file;
};

struct config_private {
    struct arena *arena;
    const char *texts[SETTING_COUNT_];
    const char *sources[SETTING_COUNT_];
    // digest of all rules, digest of all buckets; for config_compare()
    uint64_t lists[2];
};

#define CONFIG_ERRORS_MAX 20
#define CONFIG_BUCKETS_MAX 1024
#define CONFIG_RULES_MAX 1024
#define CONFIG_LIST_MAX 64
#define CONFIG_KEYS_MAX 256 // keys of one section or entry; each is compared with those before it

struct loader {
    struct arena *arena;
    struct config *config;
    struct buf *errors;
    struct buf warnings; // appended after the errors
    unsigned error_count;
    bool is_client;      // config_load_client(): files of the server are not judged
    bool is_file_unread; // there is a file, and config_file_read() has failed
    struct raw raws[SETTING_COUNT_];
    struct config_rule *rules; // config->rules, but writable
};

// config_loader.c: reports an error. The load goes on to find more errors, and then fails.
void config_loader_error(struct loader *l, const char *where, const char *format, ...)
    PRINTF_LIKE(3, 4);
// Reports a warning, which does not make the load fail.
void config_loader_warning(struct loader *l, const char *where, const char *format, ...)
    PRINTF_LIKE(3, 4);
// Allocates from the arena. Aborts if the arena is full, because its size is meant to be enough for
// any accepted file.
void *config_loader_alloc(struct loader *l, size_t size);
char *config_loader_cstr(struct loader *l, struct span s);

// config_file.c: reads the file at `path` into raw texts, buckets and rules. Returns false if it
// cannot be read as YAML.
bool config_file_read(struct loader *l, const char *path);

// config_bucket.c: the lists buckets[] and rules[], which only the file has. Both functions parse
// one entry, given as a list of its fields.
struct bucket_field {
    const char *name; // "region", "credentials.access_key_file"
    const char *value;
    const char *where, *key_where; // positions of the value and of the name in the file
};
void config_bucket_parse(struct loader *l, const char *where, const struct bucket_field *fields,
                         unsigned count, struct config_bucket *bucket);
// If the entry lacks a field, the field gets its default, or a mark for config_rules_inherit().
void config_rule_parse(struct loader *l, const char *where, const struct bucket_field *fields,
                       unsigned count, struct config_rule *rule);
// Replaces the marks that config_rule_parse() has left by the values of settings, and makes the
// default rule. Call it after the settings are parsed.
void config_rules_inherit(struct loader *l);

// config_value.c: pure parsers. If one returns false, ret_why (WHY_MAX bytes) has the reason, which
// begins with the quoted text.
#define WHY_MAX CONFIG_WHY_MAX
bool config_value_parse_block_size(struct span s, uint64_t *ret_bytes, char *ret_why);
bool config_value_parse_size(struct span s, struct config_size *ret_size, char *ret_why);
bool config_value_parse_percent(struct span s, unsigned *ret_percent, char *ret_why);
bool config_value_parse_count(struct span s, uint64_t *ret_count, char *ret_why);
bool config_value_parse_ratio(struct span s, double *ret_ratio, char *ret_why);
bool config_value_parse_choice(struct span s, const char *choices, unsigned *ret_choice,
                               char *ret_why);
// Parses a value by the kind of its row, and writes it to `field`. The row must not be a list.
bool config_value_parse(struct loader *l, const struct setting *row, struct span s, void *field,
                        char *why);
bool config_value_parse_listen(struct loader *l, struct span s, struct config_listen *ret_listen,
                               char *ret_why);
bool config_value_is_secret_file(const struct loader *l, const char *path, char *ret_why);
bool config_value_is_endpoint(struct span s, char *ret_why);
// Appends a valid endpoint in the form that names an origin in the cache, so that another spelling
// is not another origin: the host in lower case, without the default port, without slashes at the
// end, and a directory without repeated slashes.
void config_value_endpoint_render(struct span s, struct buf *out);
// Returns the same as text in the loader's arena.
const char *config_value_endpoint(struct loader *l, struct span value);
// Returns true if the host of an http or https endpoint is an IP address.
// Finds the port of HOST:PORT. *ret_port is 0 if there is none. Returns false if what follows the
// host is not one port.
bool config_value_find_port(struct span s, uint64_t *ret_port);
bool config_value_is_address(struct span endpoint);
bool config_value_is_glob(struct span s, char *ret_why);
void config_value_format_bytes(uint64_t bytes, char *ret_text); // "4MiB"; WHY_MAX bytes

// config_inherit.c: replaces `listen` by the sockets that LISTEN_FDS passes in.
void config_inherit(struct loader *l);

// config_rules.c: warns of rules that never apply.
void config_rules_judge(struct loader *l);
// config_bucket.c: refuses requester_pays in a bucket whose requests are never signed.
void config_buckets_judge(struct loader *l);

// config_overlap.c: refuses a cache.dir that is inside the directory of a `dir:` origin, or
// contains it. Warns of logs, sockets and secrets inside such a directory.
void config_overlap_judge(struct loader *l);

#endif
