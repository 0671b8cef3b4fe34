// SPDX-License-Identifier: Apache-2.0
// `forebay keys new NAME [--allow BUCKET/PREFIX[:OPS]]...`: prints an entry for auth.keys_file. The
// client's variables are comments, so that the output can be appended to the file as it is.
#include "commands/commands.h"

#include "base/host.h"
#include "base/random.h"
#include "cli/client/command_client.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUTPUT_MAX_BYTES (256u << 10)
#define NAME_LEN_MAX 64u
#define ID_LEN 20u     // the length of AWS's ids, which some clients require
#define SECRET_LEN 40u // 200 random bits, in an alphabet that needs no quotes anywhere
#define ALLOWS_MAX 64u

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"; // 5 bits each

struct key {
    const char *name;
    char id[ID_LEN + 1], secret[SECRET_LEN + 1];
    const char *allows[ALLOWS_MAX];
    unsigned allow_count;
};

static void fill_with_random(char *text, size_t len)
{
    random_bytes(text, len);
    for (size_t i = 0; i < len; i++) {
        text[i] = alphabet[(unsigned char)text[i] & 31];
    }
    text[len] = '\0';
}

static bool name_is_good(const char *name)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-";
    size_t len = strlen(name);
    return len > 0 && len <= NAME_LEN_MAX && strspn(name, letters) == len;
}

static bool ops_are_good(struct span ops)
{
    static const char *const words[] = {"read", "list", "write", "delete", "any"};
    struct span piece;
    while (span_split(&ops, ',', &piece)) {
        bool is_op = false;
        for (size_t i = 0; i < ARRAY_LEN(words); i++) {
            is_op = is_op || span_equal_cstr(piece, words[i]);
        }
        if (!is_op) {
            return false;
        }
    }
    return true;
}

struct allow {
    struct span bucket, prefix, ops;
};

// Parses BUCKET[/PREFIX][:OPS]. After a prefix that contains a colon, OPS is required.
static bool allow_parse(const char *text, struct allow *ret_allow)
{
    struct span rest = span_from_cstr(text);
    const char *colon = strrchr(text, ':');
    struct allow allow = {.ops = SPAN("read,list")};
    if (colon != NULL) {
        allow.ops = span_from_cstr(colon + 1);
        rest.len = (size_t)(colon - text);
    }
    size_t slash = span_find(rest, '/');
    allow.bucket = (struct span){rest.ptr, slash};
    if (slash < rest.len) {
        allow.prefix = (struct span){rest.ptr + slash + 1, rest.len - slash - 1};
    }
    // YAML refuses some characters, and reads line ends of Unicode as blanks.
    if (strcmp(command_client_visible(text), text) != 0 || strstr(text, "\xe2\x80\xa8") != NULL ||
        strstr(text, "\xe2\x80\xa9") != NULL) {
        return false;
    }
    *ret_allow = allow;
    return allow.bucket.len > 0 && ops_are_good(allow.ops);
}

// Appends a text in double quotes, as YAML defines them.
static void append_quoted(struct buf *out, struct span text)
{
    buf_append_char(out, '"');
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '"' || text.ptr[i] == '\\') {
            buf_append_char(out, '\\');
        }
        buf_append_char(out, text.ptr[i]);
    }
    buf_append_char(out, '"');
}

static void append_allow(struct buf *out, const char *text)
{
    struct allow allow = {0};
    struct span piece;
    const char *comma = "";
    check(allow_parse(text, &allow)); // command_keys() has checked the text
    buf_append_cstr(out, "{bucket: ");
    append_quoted(out, allow.bucket);
    buf_append_cstr(out, ", prefix: ");
    append_quoted(out, allow.prefix);
    buf_append_cstr(out, ", ops: [");
    for (struct span ops = allow.ops; span_split(&ops, ',', &piece); comma = ", ") {
        buf_printf(out, "%s%.*s", comma, (int)piece.len, piece.ptr);
    }
    buf_append_cstr(out, "]}");
}

static json_t *allow_json(const char *text)
{
    struct allow allow = {0};
    struct span piece;
    json_t *ops = json_array();
    check(allow_parse(text, &allow)); // command_keys() has checked the text
    while (span_split(&allow.ops, ',', &piece)) {
        check(json_array_append_new(ops, control_text(piece)) == 0);
    }
    return json_pack("{s:o, s:o, s:o}", "bucket", control_text(allow.bucket), "prefix",
                     control_text(allow.prefix), "ops", ops);
}

static json_t *result_of(const struct key *key)
{
    json_t *allows = json_array();
    for (unsigned i = 0; i < key->allow_count; i++) {
        check(json_array_append_new(allows, allow_json(key->allows[i])) == 0);
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "name", key->name, "id", key->id, "secret",
                     key->secret, "allow", allows);
}

static void render_entry(const struct key *key, struct buf *out)
{
    buf_printf(out, "- id: %s # %s\n  secret: %s\n  allow:%s\n", key->id, key->name, key->secret,
               key->allow_count == 0 ? " []" : "");
    for (unsigned i = 0; i < key->allow_count; i++) {
        buf_append_cstr(out, "    - ");
        append_allow(out, key->allows[i]);
        buf_append_char(out, '\n');
    }
    buf_printf(out,
               "  # for the client:\n"
               "  #   export AWS_ACCESS_KEY_ID=%s\n"
               "  #   export AWS_SECRET_ACCESS_KEY=%s\n",
               key->id, key->secret);
}

// Warns if the output goes into a file that the server would refuse.
static void warn_of_open_file(void)
{
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 037) != 0) {
        (void)fprintf(stderr,
                      "forebay keys: warning: other users may read this file (mode %04o), so the "
                      "server refuses it: %s\n",
                      (unsigned)st.st_mode & 0777, host_secret_file_remedy(st.st_uid));
    }
}

int command_keys(int argc, char **argv)
{
    struct key key = {.name = NULL};
    struct allow ignored;
    const char *allow;
    while ((allow = commands_argument_take_value(&argc, argv, "--allow")) != NULL) {
        if (!allow_parse(allow, &ignored)) {
            return commands_usage_error(
                "keys", "--allow is BUCKET[/PREFIX][:OPS], OPS some of read,list,write,delete,any");
        }
        if (key.allow_count == ALLOWS_MAX) {
            return commands_usage_error("keys", "more than 64 times --allow");
        }
        key.allows[key.allow_count++] = allow;
    }
    if (strcmp(argv[0], "new") != 0 || !name_is_good(argv[1])) {
        return commands_usage_error(
            "keys",
            "`keys new NAME` is wanted; a name is 1 to 64 letters, digits, dots, dashes, _ and @");
    }
    key.name = argv[1];
    fill_with_random(key.id, ID_LEN);
    fill_with_random(key.secret, SECRET_LEN);
    if (key.allow_count == 0) {
        command_screen_inform(2, "forebay: this key may do nothing yet: name what it may read with "
                                 "--allow BUCKET/PREFIX\n");
    }
    struct buf out;
    buf_init(&out, OUTPUT_MAX_BYTES);
    if (!commands_common()->is_json) {
        render_entry(&key, &out);
    }
    int code = commands_print_result(&out);
    code = commands_result(code, result_of(&key));
    warn_of_open_file();
    OPENSSL_cleanse(&key, sizeof(key));
    OPENSSL_cleanse(out.ptr, out.len);
    buf_done(&out);
    return code;
}
