// SPDX-License-Identifier: Apache-2.0
// Proves: the contents of a keys file are checked, each mistake is reported with its position, and
// its permissions are checked. Nothing is allowed without a rule that allows it.
#include "s3/s3.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/auth.h"
#include "test.h"

static char folder[256], path[300];
static struct buf errors;

static enum err load_mode(const char *yaml, mode_t mode, struct access_keys **ret)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/keys-XXXXXX", tmp != NULL ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/keys.yaml", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
    buf_done(&errors);
    buf_init(&errors, 1 << 16);
    enum err err = access_keys_load(path, ret, &errors);
    unlink(path);
    rmdir(folder);
    return err;
}

static enum err load(const char *yaml, struct access_keys **ret)
{
    return load_mode(yaml, 0600, ret);
}

static const char *const GOOD = "- id: zeta\n"
                                "  secret: z-secret\n"
                                "  allow:\n"
                                "    - {bucket: data, prefix: train/, ops: [read, list]}\n"
                                "    - {bucket: out, ops: [write]}\n"
                                "- id: alpha\n"
                                "  secret: a-secret\n"
                                "  allow: [{bucket: '*', ops: [read, list, write, delete]}]\n"
                                "  realm: team-a\n"
                                "- {id: nobody, secret: n}\n";

Test(access_keys, principals_are_found_with_their_rules)
{
    struct access_keys *c = NULL;
    cr_assert_eq(load(GOOD, &c), ERR_OK, "%s", buf_cstr(&errors));
    const struct access_keys_principal *p = access_keys_find(c, SPAN("zeta"));
    cr_assert(p != NULL && span_equal_cstr(p->secret, "z-secret") && p->allow_count == 2);
    cr_assert_null(p->origin_credentials);
    cr_assert_eq(p->realm.len, 0);
    p = access_keys_find(c, SPAN("alpha"));
    cr_assert(p != NULL && span_equal_cstr(p->realm, "team-a"));
    cr_assert_null(access_keys_find(c, SPAN("alph")));
    cr_assert_null(access_keys_find(c, SPAN("")));
    access_keys_unref(access_keys_ref(c));
    cr_assert_not_null(access_keys_find(c, SPAN("nobody")));
    access_keys_unref(c);
    access_keys_unref(NULL);
}

// Principals with keys of their own at the origin share their cached objects with nobody, unless
// configured.
Test(access_keys, origin_keys_make_a_realm)
{
    char files[3][320], yaml[2048];
    const char *const texts[] = {"AKIAORIGIN\n", " origin-secret\r\n", "token"};
    const char *tmp = getenv("TMPDIR");
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(files[i], sizeof(files[i]), "%s/secret-XXXXXX", tmp != NULL ? tmp : "/tmp");
        int fd = mkstemp(files[i]);
        cr_assert_geq(fd, 0);
        cr_assert_eq(write(fd, texts[i], strlen(texts[i])), (ssize_t)strlen(texts[i]));
        (void)close(fd);
    }
    (void)snprintf(yaml, sizeof(yaml),
                   "- {id: a, secret: s, origin_access_key_file: %s, origin_secret_key_file: %s,"
                   " origin_session_token_file: %s}\n"
                   "- {id: b, secret: s, realm: a, origin_access_key_file: %s,"
                   " origin_secret_key_file: %s}\n"
                   "- {id: c, secret: s, realm: a}\n- {id: d, secret: s}\n",
                   files[0], files[1], files[2], files[0], files[1]);
    struct access_keys *c = NULL;
    cr_assert_eq(load(yaml, &c), ERR_OK, "%s", buf_cstr(&errors));
    const struct access_keys_principal *a = access_keys_find(c, SPAN("a"));
    const struct access_keys_principal *b = access_keys_find(c, SPAN("b"));
    cr_assert_not_null(a->origin_credentials);
    cr_assert(span_equal_cstr(a->origin_credentials->access_key, "AKIAORIGIN"));
    cr_assert(span_equal_cstr(a->origin_credentials->secret_key, "origin-secret"));
    cr_assert(span_equal_cstr(a->origin_credentials->session_token, "token"));
    cr_assert(span_equal_cstr(a->realm, "key 1 a"));
    cr_assert(span_equal_cstr(b->realm, "a"));
    cr_assert_eq(b->origin_credentials->session_token.len, 0);
    cr_assert(span_equal_cstr(access_keys_find(c, SPAN("c"))->realm, "a"));
    cr_assert_eq(access_keys_find(c, SPAN("d"))->realm.len, 0);
    size_t count;
    const struct span *realms = access_keys_realms(c, &count);
    cr_assert_eq(count, 2);
    cr_assert(span_equal_cstr(realms[0], "key 1 a") && span_equal_cstr(realms[1], "a"));
    access_keys_unref(c);
    (void)snprintf(yaml, sizeof(yaml), "- {id: a, secret: s, origin_access_key_file: %s}\n",
                   files[0]);
    cr_assert_eq(load(yaml, &c), ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&errors), "go together"));
    cr_assert_eq(load("- {id: a, secret: s, origin_access_key_file: /proc/version}\n", &c),
                 ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&errors), "/proc/version: error: holds secrets"));
    cr_assert_eq(load("- {id: a, secret: s, origin_access_key_file: /nowhere/id}\n", &c),
                 ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&errors), "/nowhere/id: error: cannot be opened"));
    for (unsigned i = 0; i < 3; i++) {
        (void)unlink(files[i]);
    }
}

// Principals that have been removed from the file still count, because their cached objects may be
// requested again.
Test(access_keys, realms_are_kept)
{
    struct access_keys *old = NULL, *c = NULL, *next = NULL;
    cr_assert_eq(load("- {id: a, secret: s, realm: r1}\n- {id: b, secret: s, realm: r2}\n", &old),
                 ERR_OK);
    cr_assert_eq(load("- {id: a, secret: s, realm: r3}\n- {id: b, secret: s, realm: r2}\n", &c),
                 ERR_OK);
    cr_assert_eq(load("- {id: a, secret: s}\n", &next), ERR_OK);
    cr_assert_eq(access_keys_keep_realms(c, old), ERR_OK);
    cr_assert_eq(access_keys_keep_realms(c, next), ERR_OK);
    cr_assert_eq(access_keys_keep_realms(next, c), ERR_OK);
    access_keys_unref(old);
    access_keys_unref(c);
    size_t count;
    const struct span *realms = access_keys_realms(next, &count);
    cr_assert_eq(count, 3);
    cr_assert(span_equal_cstr(realms[0], "r3") && span_equal_cstr(realms[1], "r2") &&
              span_equal_cstr(realms[2], "r1"));
    access_keys_unref(next);
}

Test(access_keys, too_many_realms)
{
    struct access_keys *c = NULL;
    struct buf yaml;
    buf_init(&yaml, 65536);
    for (unsigned i = 0; i <= ACCESS_KEYS_REALMS_MAX; i++) {
        if (i == ACCESS_KEYS_REALMS_MAX) {
            cr_assert_eq(load(buf_cstr(&yaml), &c), ERR_OK, "%s", buf_cstr(&errors));
            access_keys_unref(c);
        }
        buf_printf(&yaml, "- {id: k%u, secret: s, realm: r%u}\n", i, i);
    }
    cr_assert_eq(load(buf_cstr(&yaml), &c), ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&errors), "more than 64 realms"));
    buf_done(&yaml);
}

Test(access_keys, mistakes_are_named_with_their_place)
{
    static const struct {
        const char *yaml, *complaint;
    } ROWS[] = {
        {"- id: a\n  secret: s\n  alow: []\n", ":3:3: error: unknown key 'alow'"},
        {"- id: a\n", ":1:3: error: a key needs a secret"},
        {"- secret: a\n", ":1:3: error: a key needs an id"},
        {"- {id: a, secret: s}\n- {id: a, secret: t}\n", ":2:3: error: repeated id 'a'"},
        {"- id: a\n  id: b\n  secret: s\n", ":2:3: error: repeated key 'id'"},
        {"- {id: a, secret: s, allow: [{bucket: b, ops: [reed]}]}\n",
         "error: ops are read, list, write, delete and any, not 'reed'"},
        {"- {id: a, secret: s, allow: [{ops: [read]}]}\n", "error: an allow rule needs a bucket"},
        {"- {id: a, secret: s, allow: [{bucket: b}]}\n", "error: an allow rule needs ops"},
        {"- {id: a, secret: s, allow: {bucket: b}}\n", "error: allow is a list of rules"},
        {"- {id: a, secret: [s]}\n", "error: a text is expected here"},
        {"- {id: a, secret: s, origin_access_key_file: [f]}\n", "the path of a file"},
        {"- {id: a, secret: s, realm: 'key 1 b'}\n", "a realm is 1 to 64 letters"},
        {"- {id: a, secret: s, realm: ''}\n", "a realm is 1 to 64 letters"},
        {"id: a\nsecret: s\n", ":1:1: error: a list of keys is expected"},
        {"", "error: a list of keys is expected"},
        {"[]", "error: a list of keys is expected"},
        {"- {id: a\n", ":2:1: error: "},
        {"- id: \"a\n", "error: "},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct access_keys *c = NULL;
        cr_assert_eq(load(ROWS[i].yaml, &c), ERR_INVALID, "%s", ROWS[i].yaml);
        cr_assert_null(c);
        const char *text = buf_cstr(&errors);
        cr_assert_not_null(strstr(text, ROWS[i].complaint), "%s gives %s", ROWS[i].yaml, text);
        cr_assert_eq(strncmp(text, path, strlen(path)), 0);
    }
}

Test(access_keys, each_mistake_is_named_once)
{
    static const char *const ROWS[] = {"- {id: a, secret: [s], allow: []}\n",
                                       "- {id: {}, secret: s, allow: []}\n",
                                       "- {id: a, secret: '', allow: []}\n",
                                       "- {id: a, secret: s, allow: {bucket: b}}\n",
                                       "- {id: a, secret: s, allow: [{bucket: [b], ops: [any]}]}\n",
                                       "- {id: a, secret: s, allow: [{bucket: b, ops: [reed]}]}\n",
                                       "- {id: a, secret: s, allow: [{bucket: b, ops: []}]}\n"};
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct access_keys *c = NULL;
        cr_assert_eq(load(ROWS[i], &c), ERR_INVALID, "%s", ROWS[i]);
        const char *text = buf_cstr(&errors), *end = strchr(text, '\n');
        cr_assert(end != NULL && end[1] == '\0', "%s gives %s", ROWS[i], text);
    }
}

Test(access_keys, only_an_entry_without_an_allow_list_gets_a_warning)
{
    struct access_keys *c = NULL;
    cr_assert_eq(load("- {id: a, secret: s, allow: []}\n", &c), ERR_OK);
    cr_assert_str_eq(buf_cstr(&errors), "");
    access_keys_unref(c);
    cr_assert_eq(load("- {id: a, secret: s}\n", &c), ERR_OK);
    cr_assert_not_null(strstr(buf_cstr(&errors), "a key that has no allow list may do nothing"));
    access_keys_unref(c);
}

Test(access_keys, the_file_must_be_private_and_there)
{
    struct access_keys *c = NULL;
    cr_assert_eq(load_mode(GOOD, 0604, &c), ERR_PERMISSION);
    cr_assert_not_null(strstr(buf_cstr(&errors), "chmod 600"));
    cr_assert_eq(load_mode(GOOD, 0660, &c), ERR_PERMISSION);
    cr_assert_eq(load_mode(GOOD, 0440, &c), ERR_OK);
    access_keys_unref(c);
    c = NULL;
    cr_assert_eq(access_keys_load("/nonexistent/keys", &c, &errors), ERR_NOT_FOUND);
    cr_assert_eq(access_keys_load("/", &c, &errors), ERR_INVALID);
}

Test(access_keys, a_secret_file_has_a_limit_of_its_own)
{
    char name[] = "/tmp/forebay-secret-XXXXXX", yaml[256];
    struct access_keys *c = NULL;
    int fd = mkstemp(name);
    cr_assert(fd >= 0 && ftruncate(fd, 16385) == 0 && close(fd) == 0);
    (void)snprintf(yaml, sizeof(yaml),
                   "- {id: a, secret: s, origin_access_key_file: %s, origin_secret_key_file: %s}\n",
                   name, name);
    cr_assert_eq(load(yaml, &c), ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&errors), "larger than 16384 bytes"), "%s",
                       buf_cstr(&errors));
    (void)unlink(name);
}

static bool allowed(const struct access_keys_principal *p, unsigned rights, enum s3_scope scope,
                    const char *bucket, const char *key)
{
    const struct s3_effect effect = {rights, scope, span_from_cstr(bucket), span_from_cstr(key),
                                     false};
    return access_keys_allowed(p, &effect);
}

Test(access_keys, nothing_is_allowed_that_no_rule_allows)
{
    struct access_keys *c = NULL;
    cr_assert_eq(load(GOOD, &c), ERR_OK);
    const struct access_keys_principal *zeta = access_keys_find(c, SPAN("zeta"));
    const struct access_keys_principal *alpha = access_keys_find(c, SPAN("alpha"));
    const struct access_keys_principal *nobody = access_keys_find(c, SPAN("nobody"));
    enum { READ = 1, LIST = 2, WRITE = 4, DELETE = 8, ANY = 16 };
    static const struct {
        unsigned rights;
        enum s3_scope scope;
        const char *bucket, *key;
        bool zeta, alpha;
    } ROWS[] = {
        {READ, S3_SCOPE_KEY, "data", "train/1", true, true},
        {READ, S3_SCOPE_KEY, "data", "train", false, true},
        {READ, S3_SCOPE_KEY, "data", "test/1", false, true},
        {READ, S3_SCOPE_KEY, "data2", "train/1", false, true},
        {READ, S3_SCOPE_KEY, "out", "x", false, true},
        {LIST, S3_SCOPE_PREFIX, "data", "train/", true, true},
        {LIST, S3_SCOPE_PREFIX, "data", "train/x", true, true},
        {LIST, S3_SCOPE_PREFIX, "data", "tr", false, true},
        {LIST, S3_SCOPE_PREFIX, "data", "", false, true},
        {LIST, S3_SCOPE_BUCKET, "data", "", false, true},
        {READ | LIST | WRITE | DELETE, S3_SCOPE_SOMEWHERE, "data", "", true, true},
        {WRITE, S3_SCOPE_SOMEWHERE, "data", "", false, true},
        {WRITE, S3_SCOPE_SOMEWHERE, "out", "", true, true},
        {READ, S3_SCOPE_SOMEWHERE, "other", "", false, true},
        {LIST, S3_SCOPE_SERVICE, "", "", true, true},
        {ANY, S3_SCOPE_SERVICE, "", "", false, false},
        {WRITE, S3_SCOPE_KEY, "out", "x", true, true},
        {WRITE, S3_SCOPE_KEY, "data", "train/1", false, true},
        {WRITE | DELETE, S3_SCOPE_KEY, "out", "x", false, true},
        {DELETE, S3_SCOPE_KEY, "out", "x", false, true},
        {WRITE | DELETE, S3_SCOPE_BUCKET, "out", "", false, true},
        {READ | LIST, S3_SCOPE_BUCKET, "data", "", false, true},
        {ANY, S3_SCOPE_KEY, "out", "x", false, false},
        {ANY, S3_SCOPE_BUCKET, "out", "", false, false},
        {0, S3_SCOPE_KEY, "data", "train/1", false, false},
        {READ, S3_SCOPE_KEY, "data", "train/x/../1", true, true},
        {READ, S3_SCOPE_KEY, "data", "train//./1..", true, true},
        {READ, S3_SCOPE_KEY, "data", "train/../test/1", false, true},
        {READ, S3_SCOPE_KEY, "data", "train/../../data/train/1", false, false},
        {LIST, S3_SCOPE_PREFIX, "data", "train/../", false, true},
        {LIST, S3_SCOPE_PREFIX, "data", "train/..", false, true},
        {WRITE, S3_SCOPE_KEY, "out", "../x", false, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(allowed(zeta, ROWS[i].rights, ROWS[i].scope, ROWS[i].bucket, ROWS[i].key),
                     ROWS[i].zeta, "row %zu", i);
        cr_assert_eq(allowed(alpha, ROWS[i].rights, ROWS[i].scope, ROWS[i].bucket, ROWS[i].key),
                     ROWS[i].alpha, "row %zu", i);
        cr_assert_not(allowed(nobody, ROWS[i].rights, ROWS[i].scope, ROWS[i].bucket, ROWS[i].key));
        cr_assert_not(allowed(zeta, ROWS[i].rights, ROWS[i].scope, "other", "train/1") &&
                      ROWS[i].scope != S3_SCOPE_SERVICE);
    }
    access_keys_unref(c);
    c = NULL;
    cr_assert_eq(load("- {id: a, secret: s, allow: [{bucket: b, prefix: p/, ops: [any]}]}\n", &c),
                 ERR_OK);
    const struct access_keys_principal *a = access_keys_find(c, SPAN("a"));
    cr_assert(allowed(a, ANY, S3_SCOPE_KEY, "b", "p/k"));
    cr_assert_not(allowed(a, ANY, S3_SCOPE_KEY, "b", "k"));
    cr_assert_not(allowed(a, ANY, S3_SCOPE_BUCKET, "b", ""));
    cr_assert_not(allowed(a, WRITE, S3_SCOPE_KEY, "b", "p/k"));
    access_keys_unref(c);
    cr_assert_gt(access_keys_dummy_secret().len, 0);
}

// Returns true if a principal with this prefix only may read the key, whose length is `len`.
static bool may_read(const char *prefix, const char *key, size_t len)
{
    char yaml[256];
    struct access_keys *c = NULL;
    const struct s3_effect effect = {1, S3_SCOPE_KEY, SPAN("b"), {key, len}, false};
    (void)snprintf(yaml, sizeof(yaml),
                   "- {id: a, secret: s, allow: [{bucket: b, prefix: '%s', ops: [read, list]}]}\n",
                   prefix);
    cr_assert_eq(load(yaml, &c), ERR_OK);
    bool ok = access_keys_allowed(access_keys_find(c, SPAN("a")), &effect);
    access_keys_unref(c);
    return ok;
}

Test(access_keys, a_key_is_also_judged_as_each_path_that_an_origin_on_files_may_make_of_it)
{
    static const struct {
        const char *prefix;
        struct span key;
        bool may;
    } ROWS[] = {
        {"a//", SPAN("a//b"), false},          // a/b
        {"/", SPAN("/b"), false},              // b
        {"./", SPAN("./b"), false},            // b
        {"a/.", SPAN("a/./b"), false},         // a/b
        {"a/.", SPAN("a/.b"), true},           //
        {"a/", SPAN("a/."), false},            // a
        {"a/", SPAN("a/./"), false},           // a
        {"a/", SPAN("a//b"), true},            // a/b
        {"a/", SPAN("a/./b/"), true},          // a/b/
        {"a/", SPAN("a/"), true},              //
        {"a\\", SPAN("a\\b"), false},          // a/b, if '\\' is '/'
        {"a/", SPAN("a\\b"), false},           // starts otherwise
        {"a/", SPAN("a/b\\c"), true},          // a/b/c, if '\\' is '/'
        {"a/", SPAN("a/b\\c/../x"), true},     // a/x or a/b/x
        {"a/", SPAN("a/b\\c/../../x"), false}, // x, if '\\' is not '/'
        {"a/", SPAN("a/..\\x"), false},        // x, if '\\' is '/'
        {"a/", SPAN("a/.\0"), false},          // a, if a NUL ends the name
        {"a/", SPAN("a/..\0/y"), false},       // the bucket, if a NUL ends the name
        {"a/", SPAN("a/\0/../../x"), false},   // x, if it does not
        {"a/", SPAN("a/b\0c"), true},          // a/b
        {"a/", SPAN("a/%2e%2e/x"), true},      // a name: no origin decodes twice
        {"", SPAN("a//./b\\..\\c\0"), true},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(may_read(ROWS[i].prefix, ROWS[i].key.ptr, ROWS[i].key.len), ROWS[i].may,
                     "row %zu", i);
    }
}

Test(access_keys, a_prefix_whose_keys_are_other_paths_is_warned_of)
{
    static const struct {
        const char *prefix;
        bool is_warned_of;
    } ROWS[] = {{"a//", true},  {"/a", true},   {"a/./b", true}, {"a/../b", true},
                {"a\\b", true}, {"a/", false},  {"a/.", false},  {"a/..", false},
                {"", false},    {"a/b", false}, {".a/", false},  {"a/.b/", false}};
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        (void)may_read(ROWS[i].prefix, "k", 1);
        bool is_warned_of = strstr(buf_cstr(&errors), ": warning: this prefix has") != NULL;
        cr_assert_eq(is_warned_of, ROWS[i].is_warned_of, "row %zu: %s", i, buf_cstr(&errors));
    }
}
