// SPDX-License-Identifier: Apache-2.0
// `forebay warm --check --node-features FILE NAME=URI...`: writes a file for Node Feature
// Discovery, which sets labels of its node from it. The label is forebay.io/warm-NAME=true for each
// data set of which enough is cached. Main thread.
//
// A label expires unless it is renewed. In the file, a comment above the labels has the time until
// which they count. So a label disappears by itself, for example if the server is away, this
// process has ended or the disk is full. The file is first written under a name that begins with a
// dot, which Node Feature Discovery ignores, and then renamed.
#include "cli/ops/command_warm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define DATA_SETS_MAX 256u
#define NAME_BYTES_MAX 58u         // "warm-" uses five of a label's 63 bytes
#define FILE_BYTES_MAX (64u << 10) // Node Feature Discovery does not read larger ones
#define STANDS_MIN_MS 180000u      // Node Feature Discovery reads the file once a minute
#define STANDS_ONCE_MS 3600000u
#define BUSY_TRIES 100u // tries while another process writes the same file
#define BUSY_MS 50
#define RETRY_MS 10000u // pause after a server has not answered

static_assert(DATA_SETS_MAX * (NAME_BYTES_MAX + 80) + 256 < FILE_BYTES_MAX,
              "what is too long would be read by nobody");

struct data_set {
    struct span name;
    int64_t ends_s; // when its label expires; 0: no label
    bool is_known, is_warm;
};

struct features {
    const struct command_warm_features *options;
    struct data_set sets[DATA_SETS_MAX];
    size_t set_count;
    int argc;
    char **argv;
};

// --- the command line ----------------------------------------------------------------------------

// Returns the name in "NAME=URI". The name is empty if the argument has no '='.
static struct span name_of(const char *argument)
{
    struct span s = span_from_cstr(argument), name = {argument, span_find(s, '=')};
    return name.len < s.len ? name : (struct span){argument, 0};
}

static bool is_letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Returns true if Kubernetes accepts the name after "warm-" in a label's name.
static bool is_name(struct span name)
{
    bool is = name.len > 0 && name.len <= NAME_BYTES_MAX && is_letter_or_digit(name.ptr[0]) &&
              is_letter_or_digit(name.ptr[name.len - 1]);
    for (size_t i = 0; i < name.len && is; i++) {
        char c = name.ptr[i];
        is = is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
    }
    return is;
}

static struct data_set *find_set(struct features *f, struct span name)
{
    for (size_t i = 0; i < f->set_count; i++) {
        if (span_equal(f->sets[i].name, name)) {
            return &f->sets[i];
        }
    }
    return NULL;
}

static int take_argument(struct features *f, const char *argument)
{
    struct span name = name_of(argument);
    struct s3_uri uri = {0};
    const char *why = "";
    if (name.len == 0) {
        command_client_error(f->options->client, "%s: with --node-features it is NAME=URI",
                             argument);
        return EXIT_CODE_USAGE;
    }
    if (!is_name(name)) {
        command_client_error(f->options->client,
                             "%s: the name is part of a label: at most %u letters, digits, '-', "
                             "'_' and '.', a letter or a digit at both ends",
                             argument, NAME_BYTES_MAX);
        return EXIT_CODE_USAGE;
    }
    if (!s3_uri_parse(span_from_cstr(name.ptr + name.len + 1), &uri, &why)) {
        command_client_error(f->options->client, "%s: %s", argument, why);
        return EXIT_CODE_USAGE;
    }
    if (find_set(f, name) != NULL) {
        return EXIT_CODE_OK;
    }
    if (f->set_count == DATA_SETS_MAX) {
        command_client_error(f->options->client, "more than %u data sets: take several files",
                             DATA_SETS_MAX);
        return EXIT_CODE_USAGE;
    }
    f->sets[f->set_count++] = (struct data_set){.name = name};
    return EXIT_CODE_OK;
}

// Returns the path's last part, without its folder.
static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int take_arguments(struct features *f)
{
    const char *file = file_name(f->options->file);
    if (file[0] == '.' || file[0] == '\0') {
        command_client_error(f->options->client,
                             "--node-features %s: the file's name must not be empty or begin with "
                             "a dot, such a one is not read",
                             f->options->file);
        return EXIT_CODE_USAGE;
    }
    struct stat there;
    if (lstat(f->options->file, &there) == 0 && !S_ISREG(there.st_mode) &&
        !S_ISDIR(there.st_mode)) { // renaming would replace a device, or a link to one
        command_client_error(f->options->client,
                             "--node-features %s: what is there is not a regular file, and would "
                             "be replaced by one",
                             f->options->file);
        return EXIT_CODE_USAGE;
    }
    int code = EXIT_CODE_OK;
    for (int i = 0; i < f->argc && code == EXIT_CODE_OK; i++) {
        code = take_argument(f, f->argv[i]);
    }
    return code;
}

// --- the file ------------------------------------------------------------------------------------

// Appends a time in the form of RFC 3339, which Node Feature Discovery requires.
static void append_time(struct buf *text, int64_t at_s)
{
    char time[32];
    time_t seconds = (time_t)at_s;
    struct tm parts;
    check(gmtime_r(&seconds, &parts) != NULL);
    check(strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%SZ", &parts) > 0);
    buf_append_cstr(text, time);
}

static void render(const struct features *f, int64_t now_s, struct buf *text)
{
    int64_t ends_s = 0;
    buf_printf(text, "# By forebay warm: data sets of which %.4g %% are cached on this node.\n",
               100 * f->options->least);
    for (size_t i = 0; i < f->set_count; i++) {
        const struct data_set *set = &f->sets[i];
        if (set->ends_s <= now_s) {
            continue;
        }
        if (set->ends_s != ends_s) { // the comment applies to all lines below it
            ends_s = set->ends_s;
            buf_append_cstr(text, "# +expiry-time=");
            append_time(text, ends_s);
            buf_append_char(text, '\n');
        }
        buf_printf(text, "forebay.io/warm-%.*s=true\n", (int)set->name.len, set->name.ptr);
    }
    check(buf_ok(text));
}

// Opens the new file, locked, so that nobody else writes it at the same time. The owner of the lock
// renames the file or removes it, and the lock ends with its process. A file of another user, or
// anything that is not a regular file with one name, is removed. Returns -1, and the reason in
// errno, on failure.
static int open_fresh(const char *fresh)
{
    for (unsigned i = 0; i < BUSY_TRIES; i++) {
        struct stat own, named;
        int fd = open(fresh, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        bool is_file = fd >= 0 && fstat(fd, &own) == 0 && S_ISREG(own.st_mode) &&
                       own.st_nlink <= 1 && own.st_uid == geteuid();
        if (is_file && flock(fd, LOCK_EX | LOCK_NB) == 0 && lstat(fresh, &named) == 0 &&
            named.st_ino == own.st_ino && named.st_dev == own.st_dev) {
            return fd;
        }
        int why = errno;
        if (fd >= 0) {
            (void)close(fd); // nothing was written to it
        }
        if (is_file) {
            (void)poll(NULL, 0, BUSY_MS); // another process writes the file, or has just renamed it
        } else if (lstat(fresh, &named) != 0 || unlink(fresh) != 0) {
            errno = why;
            return -1;
        }
    }
    errno = EBUSY;
    return -1;
}

// Replaces the file, so that its new content appears as a whole or not at all. On failure only the
// old file remains. The mode is 0644, because another user reads the file. Returns false, and the
// reason in errno, on failure.
static bool replace_file(const char *path, const char *fresh, struct span text)
{
    int fd = open_fresh(fresh);
    if (fd < 0) {
        return false;
    }
    bool ok = ftruncate(fd, 0) == 0 && fchmod(fd, 0644) == 0 && commands_write_all(fd, text) &&
              fsync(fd) == 0 && rename(fresh, path) == 0;
    int why = errno;
    if (!ok) {
        (void)unlink(fresh);
    }
    (void)close(fd); // also releases the lock; fsync() has reported failures
    errno = why;
    return ok;
}

static int write_file(const struct features *f)
{
    const char *path = f->options->file;
    int folder_len = (int)(file_name(path) - path);
    char fresh[PATH_MAX];
    int len = snprintf(fresh, sizeof(fresh), "%.*s.%s.new", folder_len, path, path + folder_len);
    struct buf text;
    buf_init(&text, FILE_BYTES_MAX);
    render(f, clock_wall_s(), &text);
    bool fits = len > 0 && (size_t)len < sizeof(fresh);
    errno = fits ? errno : ENAMETOOLONG;
    bool ok = fits && replace_file(path, fresh, buf_span(&text));
    if (!ok) {
        command_client_error(f->options->client, "%s cannot be written: %s", path, strerror(errno));
    }
    buf_done(&text);
    return ok ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

// --- rounds --------------------------------------------------------------------------------------

static void tell_set(const struct features *f, const struct data_set *set,
                     const struct command_warm_count *count)
{
    const struct command_client *client = f->options->client;
    double part = command_warm_share(count);
    if (!client->is_json) {
        printf("%.*s: %s of %s are cached (%.1f %%), %s\n", (int)set->name.len, set->name.ptr,
               command_bytes((double)count->bytes_done), command_bytes((double)count->bytes),
               100 * part, set->is_warm ? "labelled" : "not labelled");
    }
    json_t *item =
        json_pack("{s:s%, s:b, s:f, s:I, s:I, s:I, s:I}", "name", set->name.ptr, set->name.len,
                  "labelled", set->is_warm, "share", part, "objects", (json_int_t)count->objects,
                  "objects_done", (json_int_t)count->objects_done, "bytes",
                  (json_int_t)count->bytes, "bytes_done", (json_int_t)count->bytes_done);
    check(item != NULL);
    commands_line("item", item);
    (void)fflush(stdout); // readers do not wait for the result, which reports failures
}

static int count_set(struct features *f, struct data_set *set)
{
    const struct command_warm_features *options = f->options;
    struct command_warm_count count = {0};
    int code = EXIT_CODE_OK;
    for (int i = 0; i < f->argc && code == EXIT_CODE_OK; i++) {
        if (span_equal(name_of(f->argv[i]), set->name)) {
            code = options->count(options->ctx, f->argv[i] + set->name.len + 1, &count);
        }
    }
    if (code != EXIT_CODE_OK) {
        command_client_warn(options->client,
                            "%.*s: cannot be counted; its label stays until it expires",
                            (int)set->name.len, set->name.ptr);
        return code;
    }
    bool was_known = set->is_known, was_warm = set->is_warm;
    set->is_known = true;
    set->is_warm = count.empty == 0 && command_warm_share(&count) + 1e-9 >= options->least;
    set->ends_s = set->is_warm ? clock_wall_s() + (int64_t)(options->stands_ms / 1000) : 0;
    if (!was_known || was_warm != set->is_warm) {
        if (count.empty > 0) {
            command_client_warn(options->client,
                                "%.*s: nothing lies below a prefix of it, so it is not labelled; "
                                "--allow-empty accepts that",
                                (int)set->name.len, set->name.ptr);
        }
        tell_set(f, set, &count);
    }
    return EXIT_CODE_OK;
}

// Counts all data sets, and writes the file. Returns the error of the file if there is one,
// otherwise the last error of a data set.
static int round_once(struct features *f)
{
    int code = EXIT_CODE_OK;
    size_t counted = 0;
    for (size_t i = 0; i < f->set_count && code != EXIT_CODE_UNREACHABLE; i++) {
        int one = count_set(f, &f->sets[i]);
        counted += one == EXIT_CODE_OK;
        code = one != EXIT_CODE_OK ? one : code;
    }
    // If a single round could not count a data set, the old file may have a valid label for it, so
    // the old file stays.
    bool writes = f->options->every_ms > 0 ? counted > 0 : code == EXIT_CODE_OK;
    int written = writes ? write_file(f) : EXIT_CODE_OK;
    return written != EXIT_CODE_OK ? written : code;
}

// Ends the process at once, because the file is complete at all times. A handler is needed, because
// the first process of a container ignores signals that it does not handle.
static void on_signal(int number)
{
    (void)number;
    _exit(EXIT_CODE_OK);
}

static void end_on_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    check(sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0);
}

static int end(const struct features *f, int code)
{
    size_t labelled = 0;
    for (size_t i = 0; i < f->set_count; i++) {
        labelled += f->sets[i].is_warm;
    }
    code = code == EXIT_CODE_OK && labelled < f->set_count ? EXIT_CODE_PARTLY : code;
    return commands_result(code, json_pack("{s:I, s:I}", "data_sets", (json_int_t)f->set_count,
                                           "labelled", (json_int_t)labelled));
}

uint64_t command_warm_features_stands_ms(uint64_t every_ms)
{
    uint64_t stands_ms = every_ms > 0 ? 3 * every_ms : STANDS_ONCE_MS;
    return stands_ms < STANDS_MIN_MS ? STANDS_MIN_MS : stands_ms;
}

int command_warm_features(const struct command_warm_features *options, int argc, char **argv)
{
    struct features f = {.options = options, .argc = argc, .argv = argv};
    int code = take_arguments(&f);
    if (code != EXIT_CODE_OK) {
        return commands_result(code, NULL);
    }
    if (options->every_ms > 0) {
        end_on_signals();
    }
    code = round_once(&f);
    while (options->every_ms > 0) { // ends only by a signal, which ends the process
        bool is_away = code == EXIT_CODE_UNREACHABLE;
        (void)poll(NULL, 0,
                   (int)(is_away ? min_u64(RETRY_MS, options->every_ms) : options->every_ms));
        code = round_once(&f);
    }
    return end(&f, code);
}
