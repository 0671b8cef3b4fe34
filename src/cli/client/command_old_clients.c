// SPDX-License-Identifier: Apache-2.0
// Finds S3 clients of this environment that are too old for the variables of `forebay env`. Looks
// at the first python3 and the first aws on PATH:
//
// - An old botocore (boto3, s3fs and others use it) or aws-cli ignores AWS_ENDPOINT_URL_S3, so its
//   requests go to AWS.
// - An old s3fs passes FSSPEC_S3_ENDPOINT_URL on to a function that does not know it, and fails.
//
// Starts no Python, because that takes longer than `forebay env`. The folders beside a program tell
// the versions of its packages: bin/python3 has lib/python3.11/site-packages/botocore-1.29.27.dist-
// info. The installer of aws-cli v2 has the version in the path of the program.
//
// Not seen: packages of PYTHONPATH, those that a virtual environment takes over from the system,
// and programs that scripts start, as pyenv's do.
#include "cli/client/command_old_clients.h"

#include <assert.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"

#include "base/bytes.h"
#include "base/check.h"

struct version {
    unsigned major, minor;
    char text[64];
};

static const struct {
    const char *program, *package;
    // The first versions that read the variable: one for each series of versions, in ascending
    // order.
    struct version first[2];
    const char *effect, *remedy;
} clients[] = {
    {"python3",
     "botocore",
     {{.major = 1, .minor = 31}},
     "ignores AWS_ENDPOINT_URL_S3: boto3 sends requests to AWS",
     "install boto3 1.28 or newer, or pass endpoint_url"},
    {"python3",
     "s3fs",
     {{.major = 2023, .minor = 3}},
     "fails if FSSPEC_S3_ENDPOINT_URL is set (TypeError: endpoint_url)",
     "install s3fs 2023.3 or newer, or start it with env -u FSSPEC_S3_ENDPOINT_URL"},
    {"aws",
     "awscli",
     {{.major = 1, .minor = 29}, {.major = 2, .minor = 13}},
     "ignores AWS_ENDPOINT_URL_S3: it sends requests to AWS",
     "install aws-cli 2.13 or 1.29 or newer, or give --endpoint-url"},
};

static_assert(ARRAY_LEN(clients) == COMMAND_OLD_CLIENTS, "as callers count them");

static bool version_parse(const char *text, size_t len, struct version *ret_version)
{
    struct version v;
    (void)snprintf(v.text, sizeof(v.text), "%.*s", (int)min_u64(len, sizeof(v.text) - 1), text);
    if (sscanf(v.text, "%u.%u", &v.major, &v.minor) != 2) {
        return false;
    }
    *ret_version = v;
    return true;
}

static bool is_older(const struct version *a, const struct version *b)
{
    return a->major != b->major ? a->major < b->major : a->minor < b->minor;
}

// Returns true if the version is older than the first version of its series.
static bool is_too_old(const struct version *v, const struct version first[2])
{
    for (unsigned i = 0; i < 2; i++) {
        if (first[i].major >= v->major) {
            return is_older(v, &first[i]);
        }
    }
    return false;
}

// Finds a program as a shell does.
static bool program_find(const char *name, char ret_path[PATH_MAX])
{
    const char *path = getenv("PATH");
    struct span rest = span_from_cstr(path != NULL ? path : ""), folder;
    if (strchr(name, '/') != NULL) {
        (void)snprintf(ret_path, PATH_MAX, "%s", name);
        return access(name, X_OK) == 0;
    }
    while (span_split(&rest, ':', &folder)) {
        int len = snprintf(ret_path, PATH_MAX, "%.*s/%s", (int)folder.len, folder.ptr, name);
        if (folder.len > 0 && len < PATH_MAX && access(ret_path, X_OK) == 0) {
            return true;
        }
    }
    return false;
}

// Finds the newest version of a package that lies below `prefix`/lib/python3 or in the folder of
// that Python.
static bool package_find(const char *prefix, const char *python, const char *package,
                         struct version *ret_version)
{
    char pattern[2 * PATH_MAX];
    glob_t found;
    bool is_found = false;
    int len = snprintf(pattern, sizeof(pattern),
                       "%s/lib/{python3,%s}/{site,dist}-packages/%s-*.{dist,egg}-info", prefix,
                       python, package);
    if (len >= (int)sizeof(pattern) || glob(pattern, GLOB_BRACE | GLOB_NOSORT, NULL, &found) != 0) {
        return false;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct version v;
        const char *text = strrchr(found.gl_pathv[i], '/') + 1 + strlen(package) + 1;
        size_t text_len = (size_t)(strrchr(text, '.') - text);
        if (version_parse(text, text_len, &v) && (!is_found || is_older(ret_version, &v))) {
            *ret_version = v;
            is_found = true;
        }
    }
    globfree(&found);
    return is_found;
}

// Looks where the Python of that program looks, in the same order: the folders of the user, of
// /usr/local and of its own prefix. A virtual environment has its own prefix alone.
static bool version_find(const char *program, const char *package, struct version *ret_version)
{
    char prefix[PATH_MAX], real[PATH_MAX], user[PATH_MAX + 16];
    const char *home = getenv("HOME"), *python = "python3.*";
    (void)snprintf(prefix, sizeof(prefix), "%s", program);
    for (unsigned i = 0; i < 2; i++) { // cut off /bin/python3
        char *slash = strrchr(prefix, '/');
        if (slash == NULL) {
            return false;
        }
        *slash = '\0';
    }
    if (realpath(program, real) != NULL) {
        const char *name = strrchr(real, '/') + 1, *v2 = strstr(real, "/aws-cli/v2/");
        if (v2 != NULL) {
            const char *text = v2 + strlen("/aws-cli/v2/");
            return version_parse(text, strcspn(text, "/"), ret_version);
        }
        python = strncmp(name, "python3.", 8) == 0 ? name : python;
    }
    bool is_usr = prefix[0] == '\0' || strcmp(prefix, "/usr") == 0;
    (void)snprintf(user, sizeof(user), "%s/pyvenv.cfg", prefix);
    bool is_venv = access(user, F_OK) == 0;
    (void)snprintf(user, sizeof(user), "%s/.local", home != NULL ? home : "");
    return (!is_venv && home != NULL && package_find(user, python, package, ret_version)) ||
           (is_usr && package_find("/usr/local", python, package, ret_version)) ||
           package_find(is_usr ? "/usr" : prefix, python, package, ret_version);
}

bool command_old_client(unsigned index, const char *program, struct command_old_client *ret_client)
{
    char path[PATH_MAX];
    struct version v;
    check(index < COMMAND_OLD_CLIENTS);
    if (!program_find(program != NULL ? program : clients[index].program, path) ||
        !version_find(path, clients[index].package, &v) || !is_too_old(&v, clients[index].first)) {
        return false;
    }
    (void)snprintf(ret_client->what, sizeof(ret_client->what), "%.200s has %s %s, which %s", path,
                   clients[index].package, v.text, clients[index].effect);
    ret_client->remedy = clients[index].remedy;
    return true;
}

void command_old_clients_warn(const char *name, const char *program)
{
    const char *slash = program != NULL ? strrchr(program, '/') : NULL;
    const char *base = slash != NULL ? slash + 1 : program != NULL ? program : "";
    bool is_python = strncmp(base, "python", 6) == 0, is_aws = strcmp(base, "aws") == 0;
    for (unsigned i = 0; i < COMMAND_OLD_CLIENTS; i++) {
        struct command_old_client old;
        bool is_other = strcmp(clients[i].program, "aws") == 0 ? is_python : is_aws;
        if (!is_other && command_old_client(i, is_python || is_aws ? program : NULL, &old)) {
            command_screen_tell(2, "forebay: %s: %s; %s\n", name, old.what, old.remedy);
        }
    }
}
