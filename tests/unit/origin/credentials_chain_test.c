// SPDX-License-Identifier: Apache-2.0
// Each source of credentials is read by its rules, refused sources name the reason, and the renewer
// renews.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "origin/credentials_chain.h"
#include "rig.h"
#include "test.h"

static void clean_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_ROLE_ARN",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_ROLE_SESSION_NAME",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                        "AWS_ENDPOINT_URL_STS",
                                        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                        "HOME"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        unsetenv(names[i]);
    }
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

// Loads credentials. Returns the keys as "access/secret/token source", or the error's name and
// reason.
static const char *load(enum origin_credentials_source source)
{
    static char text[4096];
    struct credentials_options options = {.source = source};
    struct credentials_set *set = NULL;
    struct buf why;
    buf_init(&why, 4096);
    enum err err = credentials_chain_load(&options, &set, &why);
    if (err == ERR_OK) {
        snprintf(text, sizeof(text), "%.*s/%.*s/%.*s %s", (int)set->keys.access_key.len,
                 set->keys.access_key.ptr, (int)set->keys.secret_key.len, set->keys.secret_key.ptr,
                 (int)set->keys.session_token.len, set->keys.session_token.ptr, set->source);
        credentials_set_unref(set);
    } else {
        snprintf(text, sizeof(text), "%s: %s", error_name(err), buf_cstr(&why));
    }
    buf_done(&why);
    return text;
}

static void write_secret(struct harness *h, const char *name, const char *text, char *ret_path,
                         size_t size)
{
    harness_write(h, name, text, strlen(text));
    harness_path(h, name, ret_path, size);
    cr_assert_eq(chmod(ret_path, 0600), 0);
}

// Environment, all of it or nothing.
Test(credentials_chain, environment)
{
    clean_environment();
    cr_assert_not_null(strstr(load(ORIGIN_CREDENTIALS_AUTO), "no credentials"));
    setenv("AWS_ACCESS_KEY_ID", "AK", 1);
    cr_assert_not_null(strstr(load(ORIGIN_CREDENTIALS_AUTO), "AWS_SECRET_ACCESS_KEY is not"));
    setenv("AWS_SECRET_ACCESS_KEY", "SK", 1);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_AUTO), "AK/SK/ environment");
    setenv("AWS_SESSION_TOKEN", "T", 1);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_ENV), "AK/SK/T environment");
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_ANONYMOUS), "// anonymous");
}

// Key files are trimmed and have one line, and nobody else may read them. They take precedence over
// the environment.
Test(credentials_chain, key_files)
{
    struct harness h = {0};
    char access[512], secret[512];
    struct credentials_set *set = NULL;
    struct buf why;
    clean_environment();
    setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "ENV", 1);
    harness_make_root(&h);
    buf_init(&why, 4096);
    write_secret(&h, "access", "  AK\r\n", access, sizeof(access));
    write_secret(&h, "secret", "S K\n\n", secret, sizeof(secret));
    struct credentials_options options = {.access_key_file = access, .secret_key_file = secret};
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_OK, "%s", buf_cstr(&why));
    cr_assert(span_equal_cstr(set->keys.access_key, "AK") &&
              span_equal_cstr(set->keys.secret_key, "S K"));
    credentials_set_unref(set);
    chmod(secret, 0644);
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_PERMISSION);
    cr_assert_not_null(strstr(buf_cstr(&why), "chmod 600"));
    chmod(secret, 0640);
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_OK);
    credentials_set_unref(set);
    why.len = 0;
    harness_write(&h, "secret", "a\nb\n", 4);
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_ORIGIN_CREDENTIALS);
    cr_assert_eq(unlink(secret), 0);
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_PERMISSION);
    options.secret_key_file = NULL;
    cr_assert_eq(credentials_chain_load(&options, &set, &why), ERR_ORIGIN_CREDENTIALS);
    buf_done(&why);
    harness_remove_root(&h);
}

// Profiles come from both shared files. Unsupported settings are refused by name.
Test(credentials_chain, profiles)
{
    struct harness h = {0};
    char credentials[512], config[512];
    clean_environment();
    harness_make_root(&h);
    write_secret(&h, "credentials",
                 "# comment\n[default]\naws_access_key_id = AK\naws_secret_access_key=SK=/+\n\n"
                 "[two]\r\naws_access_key_id=AK2\r\naws_secret_access_key = SK2\r\n"
                 "aws_session_token = T2\r\n[half]\naws_access_key_id=AK3\n",
                 credentials, sizeof(credentials));
    write_secret(
        &h, "config",
        "[default]\nregion = eu-west-1\n[profile three]\ns3 =\n  aws_access_key_id = NESTED\n"
        "aws_access_key_id = AK3\naws_secret_access_key = SK3\nregion = ap-south-1\n"
        "[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n"
        "[profile sso]\nsso_session = x\n[profile \"my sso\"]\nsso_start_url = https://x\n"
        "[profile login]\nlogin_session = x\n"
        "[profile mfa]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n"
        "mfa_serial = x\n"
        "[profile 'role by process']\nrole_arn = arn:aws:iam::1:role/x\n"
        "source_profile = default\naws_access_key_id = NOT\naws_secret_access_key = NOT\n"
        "credential_process = /bin/echo '{\"Version\": 1, \"AccessKeyId\": \"RK\", "
        "\"SecretAccessKey\": \"RS\"}'\n"
        "[profile sso-by-process]\nsso_session = x\n"
        "credential_process = /bin/echo '{\"Version\": 1, \"AccessKeyId\": \"OK\", "
        "\"SecretAccessKey\": \"OS\"}'\n[profile process]\n"
        "credential_process = /bin/echo '{\"Version\": 1, \"AccessKeyId\": \"PK\", "
        "\"SecretAccessKey\": \"PS\", \"SessionToken\": \"PT\"}'\n"
        "[profile fails]\ncredential_process = /bin/false\n"
        "[profile missing]\ncredential_process = /nonexistent/program\n"
        "[profile shell]\ncredential_process = /bin/echo $(id) ; id > /dev/null\n"
        "[profile inherits]\ncredential_process = /bin/ls /proc/self/fd/77\n"
        // One hexadecimal digit each of the blocked and the ignored signals: 13 to 16.
        "[profile signals]\ncredential_process = awk '/^Sig(Blk|Ign)/ {s = s substr($2, 13, 1)} "
        "END {print \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"\" s \"\\\", "
        "\\\"SecretAccessKey\\\": \\\"S\\\"}\"}' /proc/self/status\n",
        config, sizeof(config));
    setenv("AWS_SHARED_CREDENTIALS_FILE", credentials, 1);
    setenv("AWS_CONFIG_FILE", config, 1);
    cr_assert_eq(dup2(2, 77), 77); // as libraries open theirs
    sigset_t blocked;              // as the threads of a server have them
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &blocked, NULL), 0);
    cr_assert_neq(signal(SIGPIPE, SIG_IGN), SIG_ERR);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_AUTO), "AK/SK=/+/ profile");
    static const struct {
        const char *profile, *expected;
    } cases[] = {
        {"two", "AK2/SK2/T2 profile"},
        {"three", "AK3/SK3/ profile"},
        {"process", "PK/PS/PT credential_process"},
        {"half", "no aws_secret_access_key"},
        {"role", "source_profile or credential_source, and Forebay needs AWS CLI 2 for that: run "
                 "`aws configure set --profile role credential_process 'aws configure "
                 "export-credentials --profile role'` once"},
        {"sso", "single sign-on, and Forebay needs AWS CLI 2 for that: run `aws configure set "
                "--profile sso credential_process 'aws configure export-credentials --profile "
                "sso'` once"},
        {"my sso", "`aws configure set --profile \"my sso\" credential_process 'aws configure "
                   "export-credentials --profile \"my sso\"'`"},
        {"login", "single sign-on"},
        {"mfa", "run `eval \"$(aws configure export-credentials --format env --profile mfa)\"` in "
                "your shell; these keys are not renewed"},
        {"role by process", "RK/RS/ credential_process"},
        {"sso-by-process", "OK/OS/ credential_process"},
        {"fails", "/bin/false failed"},
        {"missing", "/nonexistent/program"},
        {"shell", "not a JSON object"},
        {"none", "AWS_PROFILE names none"},
        {"inherits", "/bin/ls failed"},
        {"signals", "00/S/ credential_process"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        setenv("AWS_PROFILE", cases[i].profile, 1);
        const char *text = load(ORIGIN_CREDENTIALS_AUTO);
        cr_assert_not_null(strstr(text, cases[i].expected), "%s: %s", cases[i].profile, text);
        cr_assert_null(strstr(text, "NESTED"));
    }
    harness_remove_root(&h);
}

// Command lines are split like a shell's words, and nothing in them is executed.
Test(credentials_chain, command_words)
{
    static const struct {
        const char *text, *joined; // words joined by '|'; NULL: refused
    } cases[] = {{"a b  c", "a|b|c"},
                 {" 'a b' \"c d\" ", "a b|c d"},
                 {"a\\ b", "a b"},
                 {"\"a\\\"b\\n\"", "a\"b\\n"},
                 {"'a\\b'", "a\\b"},
                 {"a'b'\"c\"", "abc"},
                 {"''", ""},
                 {"$(x) `y` ; & | > *", "$(x)|`y`|;|&|||>|*"},
                 {"'open", NULL},
                 {"\"open", NULL},
                 {"a b c d e f g h i", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char storage[128], *words[8];
        unsigned count = 0;
        struct buf joined;
        buf_init(&joined, 256);
        bool ok = credentials_split_command(cases[i].text, storage, words, 8, &count);
        cr_assert_eq(ok, cases[i].joined != NULL, "%s", cases[i].text);
        for (unsigned w = 0; ok && w < count; w++) {
            buf_printf(&joined, "%s%s", w > 0 ? "|" : "", words[w]);
        }
        if (ok) {
            cr_assert_str_eq(buf_cstr(&joined), cases[i].joined);
        }
        buf_done(&joined);
    }
}

// Time stamps of every service.
Test(credentials_chain, times)
{
    static const struct {
        const char *text;
        int64_t s; // -1: refused
    } cases[] = {{"1970-01-01T00:00:10Z", 10},
                 {"2026-11-21T12:00:00.123Z", 1795262400},
                 {"1970-01-01T01:00:10+01:00", 10},
                 {"1969-12-31T23:00:10-0100", 10},
                 {"1970-01-01T00:00:10", -1},
                 {"1970-01-01 00:00:10Z", -1},
                 {"1970-13-01T00:00:10Z", -1},
                 {"1970-01-01T25:00:10Z", -1},
                 {"x970-01-01T00:00:10Z", -1},
                 {"1970-01-01T00:00:10Zx", -1},
                 {"", -1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int64_t s = -1;
        bool ok = credentials_parse_time(span_from_cstr(cases[i].text), &s);
        cr_assert_eq(ok, cases[i].s >= 0, "%s", cases[i].text);
        cr_assert_eq(s, cases[i].s, "%s: %lld", cases[i].text, (long long)s);
    }
}

// Plain http only to loopback and the fixed addresses.
Test(credentials_chain, container_urls)
{
    static const char *const good[] = {"https://any.example/x",
                                       "http://localhost:80/x",
                                       "http://127.0.0.1/x",
                                       "http://127.1.2.3:5/x",
                                       "http://169.254.170.2/v",
                                       "http://[::1]/x",
                                       "http://169.254.170.23/v1/credentials",
                                       "http://[fd00:ec2::23]:80/x"};
    static const char *const bad[] = {"http://example.com/",
                                      "http://169.254.169.254/",
                                      "ftp://127.0.0.1/",
                                      "http://127.0.0.1@evil/",
                                      "http://127.0.0.1.evil/",
                                      "http://128.0.0.1/",
                                      "http://localhost.evil/",
                                      "http://[::2]/",
                                      "http://",
                                      "http://127.0.0.256/",
                                      "http://evil\\@127.0.0.1/",
                                      "http://evil#@127.0.0.1"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        cr_assert(credentials_container_url_is_allowed(good[i]), "%s", good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(credentials_container_url_is_allowed(bad[i]), "%s", bad[i]);
    }
}

#define KEYS_JSON                                                                                  \
    "{\"Code\":\"Success\",\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"SK\",\"Token\":\"TK\","    \
    "\"Expiration\":\"2037-01-01T00:00:00Z\"}"

static char *answer_of(const char *body)
{
    return rig_answer("200 OK", "Connection: close\r\n", body);
}

// The container endpoint gets the token from its file, which is read for each request. After a
// failure it is asked again.
Test(credentials_chain, container)
{
    struct harness h = {0};
    struct server server;
    char url[128], token[512];
    char *keys = answer_of(KEYS_JSON);
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
         .close = true},
        {.answer = keys, .close = true}};
    clean_environment();
    harness_make_root(&h);
    write_secret(&h, "token", "from-file\n", token, sizeof(token));
    server_start(&server, rows, ARRAY_LEN(rows));
    snprintf(url, sizeof(url), "%s/v1/credentials", server.endpoint);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "from-variable", 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token, 1);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_AUTO), "AK/SK/TK container endpoint");
    cr_assert_eq(server_requests(&server), 2);
    cr_assert_not_null(strstr(server_request(&server, 1), "GET /v1/credentials HTTP/1.1\r\n"));
    cr_assert_not_null(strstr(server_request(&server, 1), "Authorization: from-file\r\n"));
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/", 1);
    cr_assert_not_null(strstr(load(ORIGIN_CREDENTIALS_CONTAINER), "must be https"));
    server_stop(&server);
    server_done(&server);
    harness_remove_root(&h);
    free(keys);
}

// IMDSv2: token first, then role, then keys.
Test(credentials_chain, instance)
{
    struct server server;
    char *keys = answer_of(KEYS_JSON), *role = answer_of("my-role\n"), *token = answer_of("TOKEN");
    char *region = answer_of("eu-west-3");
    struct server_row rows[] = {{.answer = token, .close = true},
                                {.answer = role, .close = true},
                                {.answer = keys, .close = true},
                                {.answer = region, .close = true}};
    clean_environment();
    server_start(&server, rows, ARRAY_LEN(rows));
    unsetenv("AWS_EC2_METADATA_DISABLED");
    char endpoint[256]; // the slash at its end is not sent twice
    snprintf(endpoint, sizeof(endpoint), "%s/", server.endpoint);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint, 1);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_AUTO), "AK/SK/TK instance metadata");
    cr_assert_not_null(strstr(server_request(&server, 0), "PUT /latest/api/token HTTP/1.1\r\n"));
    cr_assert_not_null(
        strstr(server_request(&server, 0), "X-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"));
    cr_assert_not_null(
        strstr(server_request(&server, 1), "GET /latest/meta-data/iam/security-credentials/ "));
    cr_assert_not_null(
        strstr(server_request(&server, 2), "/iam/security-credentials/my-role HTTP/1.1\r\n"));
    cr_assert_not_null(strstr(server_request(&server, 2), "X-aws-ec2-metadata-token: TOKEN\r\n"));
    setenv("AWS_EC2_METADATA_DISABLED", "TRUE", 1);
    cr_assert_not_null(strstr(load(ORIGIN_CREDENTIALS_IMDS), "no credentials"));
    server_stop(&server);
    server_done(&server);
    free(keys);
    free(role);
    free(token);
    free(region);
}

// Web identity: an unsigned POST to STS with the token of the file.
Test(credentials_chain, web_identity)
{
    struct harness h = {0};
    struct server server;
    char token[512];
    char *answer = answer_of(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        "<AccessKeyId>WA</AccessKeyId><SecretAccessKey>WS</SecretAccessKey><SessionToken>WT</"
        "SessionToken>"
        "<Expiration>2037-01-01T00:00:00Z</Expiration></Credentials></"
        "AssumeRoleWithWebIdentityResult>"
        "</AssumeRoleWithWebIdentityResponse>");
    struct server_row rows[] = {
        {.answer = answer, .close = true},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", .close = true}};
    clean_environment();
    harness_make_root(&h);
    write_secret(&h, "token", "to.ken+/=\n", token, sizeof(token));
    server_start(&server, rows, ARRAY_LEN(rows));
    setenv("AWS_ENDPOINT_URL_STS", server.endpoint, 1);
    setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token, 1);
    setenv("AWS_ROLE_SESSION_NAME", "me", 1);
    cr_assert_str_eq(load(ORIGIN_CREDENTIALS_AUTO), "WA/WS/WT web identity");
    cr_assert_not_null(strstr(server_request(&server, 0), "POST / HTTP/1.1\r\n"));
    cr_assert_not_null(strstr(server_request(&server, 0),
                              "\r\n\r\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn="
                              "arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fr&RoleSessionName=me&"
                              "WebIdentityToken=to.ken%2B%2F%3D"));
    const char *text = load(ORIGIN_CREDENTIALS_IRSA);
    cr_assert_not_null(strstr(text, "answered 403"));
    cr_assert_null(strstr(text, "to.ken"));
    server_stop(&server);
    server_done(&server);
    harness_remove_root(&h);
    free(answer);
}

// Answers without keys are refused, and their content is not repeated.
Test(credentials_chain, bad_json)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{",
        "{\"Code\":\"Failed\"}",
        "{\"AccessKeyId\":\"a\"}",
        "{\"AccessKeyId\":1,\"SecretAccessKey\":\"SECRETSECRET\"}",
        "{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"SECRETSECRET\",\"Expiration\":\"x\"}"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct credentials_set *set = NULL;
        struct buf why;
        buf_init(&why, 4096);
        cr_assert_eq(credentials_parse_json("test", span_from_cstr(texts[i]), false, &set, &why),
                     ERR_ORIGIN_CREDENTIALS);
        cr_assert_null(strstr(buf_cstr(&why), "SECRETSECRET"));
        buf_done(&why);
    }
}
