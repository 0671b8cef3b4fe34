// SPDX-License-Identifier: Apache-2.0
// `forebay version [--json]`: prints the versions of this binary and its libraries. If a library
// reports its version at run time, that version is shown instead of the one at build time.
#include "commands/commands.h"

#include "base/version.h"

#include <curl/curl.h>
#include <event2/event.h>
#include <expat.h>
#include <isa-l.h>
#include <jansson.h>
#include <lmdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <xxhash.h>
#include <yaml.h>
#ifdef FOREBAY_FAULTS // test builds also check request heads with llhttp
#include <llhttp.h>
#endif

#define TEXT_MAX 64

struct library {
    const char *name;
    char version[TEXT_MAX];
};

#ifdef FOREBAY_FAULTS
#define LIBRARY_COUNT 10
#else
#define LIBRARY_COUNT 9
#endif

static void list_libraries(struct library *ret_rows)
{
    int major, minor, patch;
    const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);
    XML_Expat_Version expat = XML_ExpatVersionInfo();
    unsigned xxhash = XXH_versionNumber();
    (void)mdb_version(&major, &minor, &patch); // fills all three
    for (int i = 0; i < LIBRARY_COUNT; i++) {
        ret_rows[i] = (struct library){.name = NULL};
    }
#define SET(i, library_name, ...)                                                                  \
    (ret_rows[i].name = library_name, (void)snprintf(ret_rows[i].version, TEXT_MAX, __VA_ARGS__))
    SET(0, "libevent", "%s", event_get_version());
    SET(1, "libcurl", "%s", curl->version);
    SET(2, "openssl", "%s", OpenSSL_version(OPENSSL_VERSION_STRING));
    SET(3, "lmdb", "%d.%d.%d", major, minor, patch);
    SET(4, "libyaml", "%s", yaml_get_version_string());
    SET(5, "isa-l", "%d.%d.%d", ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION, ISAL_PATCH_VERSION);
    SET(6, "expat", "%d.%d.%d", expat.major, expat.minor, expat.micro);
    SET(7, "jansson", "%s", jansson_version_str());
    SET(8, "xxhash", "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
#ifdef FOREBAY_FAULTS
    SET(9, "llhttp", "%d.%d.%d", LLHTTP_VERSION_MAJOR, LLHTTP_VERSION_MINOR, LLHTTP_VERSION_PATCH);
#endif
#undef SET
}

int command_version(int argc, char **argv)
{
    (void)argc, (void)argv; // the command has no options of its own
    struct library rows[LIBRARY_COUNT];
    struct utsname host;
    struct buf out;
    json_t *libraries = json_object();
    list_libraries(rows);
    if (uname(&host) != 0) {
        host.release[0] = '\0';
    }
    buf_init(&out, 1u << 16);
    buf_printf(&out, "forebay %s (%s, %s) on Linux %s\n", version_text(), version_revision(),
               version_build(), host.release);
    for (int i = 0; i < LIBRARY_COUNT; i++) {
        buf_printf(&out, "  %-9s %s\n", rows[i].name, rows[i].version);
        check(json_object_set_new(libraries, rows[i].name, json_string(rows[i].version)) == 0);
    }
    int code = commands_common()->is_json ? EXIT_CODE_OK : commands_print_result(&out);
    code = commands_result(code, json_pack("{s:s, s:s, s:s, s:s, s:o}", "version", version_text(),
                                           "revision", version_revision(), "build", version_build(),
                                           "kernel", host.release, "libraries", libraries));
    buf_done(&out);
    return code;
}
