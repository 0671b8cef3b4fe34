// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: checks each origin's network, its clock, its credentials, and their rights in
// each bucket. Each check takes a limited time. Runs on the main thread of the command, which owns
// the findings in struct doctor. Requests to origins run on the worker of command_probe.c, and the
// main thread waits for them.
#include <curl/curl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/date.h"
#include "cli/client/command_endpoint.h"
#include "cli/client/command_probe.h"
#include "cli/doctor/command_doctor.h"
#include "commands/commands.h"
#include "control/control.h"
#include "net/net.h"
#include "origin/origin.h"

#define REMEDY_MAX_BYTES 4096u
#define NAMES_MAX_BYTES (1u << 20) // for the names of the settings of BUCKETS_MAX buckets
#define BUCKET_NAME_MAX 258u       // with the mark before it, and a NUL
#define BUCKETS_MAX 20u            // maximum number of buckets to check
#define THROTTLED_S 60u
#define TRIES_MAX 3u // requests that a check sends if the first one fails
#define TRIES_PAUSE_MS 200u
#define LATE_S 1.0 // An answer that takes longer is yellow.
#define FAILURE_MAX 512u
// The share of failures that is a condition takes more requests than a doctor sends.
#define SOME_FAIL_REMEDY                                                                           \
    "see the store's own log and health, and those of gateways before it. A server of Forebay "    \
    "counts failures in forebay_origin_errors_total{reason=\"5xx\"}, and its access log has 5xx "  \
    "as "                                                                                          \
    "why of each request of a client that failed"
#define SKEW_YELLOW_S 300
#define SKEW_REFUSED_S 900 // from this difference on S3 refuses signatures

// --- Network -------------------------------------------------------------------------------------

struct reach {
    CURLcode code;
    char why[CURL_ERROR_SIZE];
    double dns_s, connect_s, tls_s, first_s;
    long port;      // 0: no connection
    int64_t date_s; // 0: the answer had no Date
    int64_t now_s;  // time of this host when the Date came
};

static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    struct reach *reach = ctx;
    struct span rest = {line, size * count}, name;
    time_t date;
    if (span_split(&rest, ':', &name) && span_equal_nocase(name, SPAN("date")) &&
        rest.ptr != NULL) {
        while (rest.len > 0 && (rest.ptr[rest.len - 1] == '\n' || rest.ptr[rest.len - 1] == '\r')) {
            rest.len--;
        }
        if (date_parse_http(span_trim(rest), &date)) {
            reach->date_s = (int64_t)date;
            reach->now_s = clock_wall_s();
        }
    }
    return size * count;
}

// Sends a request without a signature. Any answer shows that a server is there.
static void reach(const struct doctor *d, const char *url, struct reach *ret)
{
    CURL *easy = curl_easy_init();
    check(easy != NULL);
    *ret = (struct reach){.code = CURLE_OK};
    (void)curl_easy_setopt(easy, CURLOPT_URL, url); // these options cannot fail with this libcurl
    (void)curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    const char *proxy = strncmp(url, "https://", 8) == 0 ? d->proxy_url : NULL;
    (void)curl_easy_setopt(easy, CURLOPT_NOPROXY, proxy != NULL ? "" : "*");
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, proxy != NULL ? proxy : "");
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)command_doctor_wait_ms(d));
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                           (long)min_u64(d->config->origin_connect_timeout_ms, d->timeout_ms));
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, ret->why);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, ret);
    const char *ca_file = d->config->origin_ca_file;
    ca_file = ca_file != NULL ? ca_file : transfer_system_authorities();
    if (ca_file != NULL) {
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    }
    ret->code = curl_easy_perform(easy);
    (void)curl_easy_getinfo(easy, CURLINFO_NAMELOOKUP_TIME,
                            &ret->dns_s); // times that are missing stay 0
    (void)curl_easy_getinfo(easy, CURLINFO_CONNECT_TIME, &ret->connect_s);
    (void)curl_easy_getinfo(easy, CURLINFO_APPCONNECT_TIME, &ret->tls_s);
    (void)curl_easy_getinfo(easy, CURLINFO_STARTTRANSFER_TIME, &ret->first_s);
    (void)curl_easy_getinfo(easy, CURLINFO_PRIMARY_PORT, &ret->port);
    curl_easy_cleanup(easy);
}

// Returns true if it is the proxy that cannot be reached, or that refuses the tunnel.
static bool is_of_proxy(const struct doctor *d, const char *url, const struct reach *r)
{
    return d->proxy_url != NULL && strncmp(url, "https://", 8) == 0 &&
           (r->code == CURLE_COULDNT_CONNECT || r->code == CURLE_COULDNT_RESOLVE_PROXY ||
            r->code == CURLE_RECV_ERROR);
}

// A fault of an origin, in words, and its remedy.
struct fault {
    const char *what, *remedy; // `remedy` names settings of the default origin
};

static struct fault fault_of(const struct doctor *d, const char *url, const struct reach *r)
{
    const char *why = r->why[0] != '\0' ? r->why : curl_easy_strerror(r->code);
    bool is_https = strncmp(url, "https://", 8) == 0;
    if (is_of_proxy(d, url, r)) {
        return (struct fault){
            why, "check origin.proxy, origin.proxy_auth_file, and what the proxy allows"};
    }
    switch (r->code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return (struct fault){
            "its name cannot be resolved",
            "correct origin.endpoint, or the resolver (/etc/resolv.conf, the cluster's DNS)"};
    case CURLE_COULDNT_CONNECT:
        return (struct fault){"nothing listens there",
                              "check host and port of origin.endpoint, and that the store runs; "
                              "try: curl -v URL"};
    case CURLE_OPERATION_TIMEDOUT:
        return r->port != 0 && r->tls_s <= 0 && is_https
                   ? (struct fault){"it takes connections, but does not answer TLS",
                                    "say http:// in origin.endpoint if it speaks plain HTTP"}
                   : (struct fault){"no answer in time",
                                    "a firewall or security group in between, or an origin that "
                                    "hangs: try curl -v URL"};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return (struct fault){why, "name the authority that signed it in origin.ca_file (a PEM "
                                   "file), and the host in origin.endpoint as in the certificate"};
    case CURLE_SSL_CONNECT_ERROR:
        return (struct fault){why, "say http:// in origin.endpoint if it speaks plain HTTP"};
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: {
        struct origin_advice advice = origin_advice_if_closed();
        return (struct fault){advice.text, advice.remedy};
    }
    default:
        return (struct fault){why,
                              "say https:// in origin.endpoint if it speaks TLS; try: curl -v URL"};
    }
}

// Reports a fault of an origin with these settings.
static void find_fault(struct doctor *d, const char *check_name,
                       const struct origin_settings *settings, const struct fault *fault,
                       const char *where)
{
    struct buf remedy;
    buf_init(&remedy, REMEDY_MAX_BYTES);
    origin_settings_render(settings, fault->remedy, &remedy);
    command_doctor_red_of_origin(d, check_name, buf_cstr(&remedy), fault->what, where);
    buf_done(&remedy);
}

static void check_clock(struct doctor *d, const char *shown, const struct reach *r)
{
    if (r->date_s == 0) {
        return;
    }
    int64_t skew_s = r->date_s - r->now_s, size_s = skew_s < 0 ? -skew_s : skew_s;
    if (size_s < SKEW_YELLOW_S) {
        command_doctor_find(d, DOCTOR_GREEN, "clock", NULL, "within %lld s of %s",
                            (long long)size_s + 1, shown);
        return;
    }
    // No more than a warning, as the condition clock-skew: Forebay signs by the origin's clock.
    command_doctor_find(
        d, DOCTOR_YELLOW, "clock", "set this host's clock (chrony, NTP); a pod has its node's",
        "%lld s %s %s%s", (long long)size_s, skew_s > 0 ? "behind" : "ahead of", shown,
        size_s >= SKEW_REFUSED_S ? ": S3 refuses signatures of such clocks, so "
                                   "Forebay signs by the origin's"
                                 : "");
}

static void find_reached(struct doctor *d, const char *shown, const struct reach *r)
{
    double answer_s = r->first_s - (r->tls_s > 0 ? r->tls_s : r->connect_s);
    if (answer_s >= LATE_S) {
        command_doctor_find(d, DOCTOR_YELLOW, "origin",
                            "look at the load of the store, and at the way to it: each read that "
                            "misses, or is past its ttl, waits as long",
                            "%s: answers after %.1f s", shown, answer_s);
        return;
    }
    command_doctor_find(d, DOCTOR_GREEN, "origin", NULL,
                        "%s: name %.1f ms, connection %.1f ms, TLS %.1f ms, answer %.1f ms", shown,
                        1000 * r->dns_s, 1000 * (r->connect_s - r->dns_s),
                        r->tls_s > 0 ? 1000 * (r->tls_s - r->connect_s) : 0, 1000 * answer_s);
}

// Returns true if a server answers at the endpoint. `bucket`: the entry that has this endpoint or
// this region; NULL: the default origin.
static bool check_endpoint(struct doctor *d, const struct origin_settings *settings,
                           const struct config_bucket *bucket)
{
    const struct config *c = d->config;
    bool has_endpoint = bucket != NULL && bucket->endpoint != NULL;
    bool has_region = bucket != NULL && bucket->region != NULL;
    char url[COMMAND_ORIGINS_URL_MAX], shown[COMMAND_ORIGINS_URL_MAX + BUCKET_NAME_MAX];
    struct reach r;
    if (!command_origins_url(has_endpoint ? bucket->endpoint : c->origin_endpoint,
                             has_region ? bucket->region : c->origin_region, url)) {
        return true;
    }
    (void)snprintf(shown, sizeof(shown), "%s%s%s", url, bucket != NULL ? "#" : "",
                   bucket != NULL ? bucket->name : ""); // like origin_shown()
    reach(d, url, &r);
    if (r.code != CURLE_OK) {
        struct fault fault = fault_of(d, url, &r);
        find_fault(d, "origin", settings, &fault, shown);
        return false;
    }
    find_reached(d, shown, &r);
    check_clock(d, shown, &r);
    return true;
}

// The origins that answer. The others are asked nothing further.
struct answers {
    bool of_default, of_any;
    bool of_buckets[BUCKETS_MAX]; // of the first entries of `buckets`
};

// --- Credentials and rights ----------------------------------------------------------------------

static const struct {
    const char *code, *what, *remedy;
} refusals[] = {
    {"PermanentRedirect", "the bucket is at another endpoint",
     "set origin.region and origin.endpoint to the bucket's"},
    {"NoSuchBucket", "there is no such bucket",
     "correct its name, or `origin` of its row in buckets"},
};

static const char *asked_name(enum command_probe_kind kind)
{
    static const char *const names[] = {"ListBuckets", "LIST", "HEAD", "ranged GET"};
    return names[kind];
}

static bool is_failure(const struct command_probe_answer *a)
{
    return a->err == ERR_ORIGIN_5XX || a->err == ERR_ORIGIN_UNAVAILABLE ||
           (a->err == ERR_OK && a->status >= 500 && a->status != 501);
}

// Describes a failure: "HEAD of data with a server error (status 500)".
static void describe_failure(const char *bucket, enum command_probe_kind kind,
                             const struct command_probe_answer *a, char ret_text[FAILURE_MAX])
{
    char status[32] = "5xx"; // the status of some answers is unknown here
    bool has_bucket = kind != PROBE_BUCKETS;
    if (a->status != 0) {
        (void)snprintf(status, sizeof(status), "status %u", a->status);
    }
    (void)snprintf(ret_text, FAILURE_MAX, "%s%s%s with a server error (%s)", asked_name(kind),
                   has_bucket ? " of " : "", has_bucket ? bucket : "", status);
}

static void find_failure(struct doctor *d, const struct origin *origin, const char *bucket,
                         enum command_probe_kind kind, const struct command_probe_answer *a)
{
    char failure[FAILURE_MAX], what[FAILURE_MAX + 32];
    describe_failure(bucket, kind, a, failure);
    (void)snprintf(what, sizeof(what), "it answers %s", failure);
    command_doctor_red_of_origin(d, "origin", conditions_row(CONDITION_origin_failing).remedy, what,
                                 origin_shown(origin));
}

// Sends the request of a check. If the origin fails it, sends it again: a store that fails some
// requests must not get another verdict from run to run. If only some of these requests fail,
// *ret_answer is a good one, and a yellow finding says how many failed.
static void ask_origin(struct doctor *d, struct command_probe *probe,
                       const struct command_probe_ask *ask, struct command_probe_answer *ret_answer)
{
    char failure[FAILURE_MAX];
    unsigned tries = 1, failed = 1;
    command_probe_ask(probe, ask, command_doctor_probe_ms(d), ret_answer);
    if (!is_failure(ret_answer)) {
        return;
    }
    describe_failure(ask->bucket, ask->kind, ret_answer, failure);
    while (tries < TRIES_MAX && !command_doctor_is_out_of_time(d) &&
           !origin_throttles(ask->origin, THROTTLED_S)) {
        struct command_probe_answer next;
        (void)poll(NULL, 0, TRIES_PAUSE_MS); // a signal may end the pause sooner
        command_probe_ask(probe, ask, command_doctor_probe_ms(d), &next);
        tries++;
        failed += is_failure(&next) ? 1 : 0;
        *ret_answer = is_failure(&next) ? *ret_answer : next;
    }
    if (failed < tries) {
        command_doctor_find(d, DOCTOR_YELLOW, "origin", SOME_FAIL_REMEDY,
                            "%s: it answers %s, in %u of %u requests", origin_shown(ask->origin),
                            failure, failed, tries);
    }
}

// Reports why a request got no good answer. Credentials without the right to list may still read,
// so a refused listing alone is yellow.
static void find_refused(struct doctor *d, const struct origin *origin, const char *bucket,
                         enum command_probe_kind kind, const struct command_probe_answer *a)
{
    char what[512];
    struct origin_trouble_text trouble;
    if (origin_throttles(origin, THROTTLED_S)) {
        command_doctor_find(d, DOCTOR_YELLOW, "rights",
                            conditions_row(CONDITION_origin_throttled).remedy, "origin %s: %s",
                            origin_shown(origin), ORIGIN_THROTTLES);
        return;
    }
    if (is_failure(a)) {
        find_failure(d, origin, bucket, kind, a);
        return;
    }
    if (a->err == ERR_ORIGIN_REFUSED && origin_in_trouble(origin, &trouble)) {
        (void)snprintf(what, sizeof(what), "%s: %s", asked_name(kind), trouble.text);
        command_doctor_red_of_origin(d, "rights", trouble.remedy, what, bucket);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        if (strstr(a->text, refusals[i].code) != NULL) {
            struct fault fault = {what, refusals[i].remedy};
            (void)snprintf(what, sizeof(what), "%s: %s (%s)", asked_name(kind), refusals[i].what,
                           refusals[i].code);
            find_fault(d, "rights", origin_settings(origin), &fault, bucket);
            return;
        }
    }
    if (a->err == ERR_NO_SUCH_BUCKET) {
        command_doctor_red_of_origin(d, "rights", refusals[ARRAY_LEN(refusals) - 1].remedy,
                                     "there is no such bucket", bucket);
    } else if (a->err == ERR_CANCELLED) {
        command_doctor_red_of_origin(d, "rights",
                                     "an origin that hangs, or a bucket of very many keys",
                                     "no answer in time", bucket);
    } else if (a->status == 403 || a->err == ERR_ACCESS_DENIED) {
        bool is_list = kind == PROBE_LIST;
        if (!is_list && d->exit_code == EXIT_CODE_OK) {
            d->exit_code = EXIT_CODE_ORIGIN;
        }
        command_doctor_find(d, is_list ? DOCTOR_YELLOW : DOCTOR_RED, "rights",
                            is_list ? "grant s3:ListBucket if clients list"
                                    : "grant s3:GetObject on what is to be read",
                            "%s: %s is refused (AccessDenied)%s", bucket, asked_name(kind),
                            is_list ? "; whether reads are, too, shows with the first" : "");
    } else {
        (void)snprintf(what, sizeof(what), "%s: %s (status %u)", asked_name(kind),
                       a->err != ERR_OK ? error_row(a->err)->text : "refused", a->status);
        command_doctor_red_of_origin(
            d, "rights", "look at the origin's own log; try: aws s3 ls with the same keys", what,
            bucket);
    }
}

static bool is_good(const struct command_probe_answer *a)
{
    return a->err == ERR_OK && (a->status == 200 || a->status == 206);
}

static void check_bucket(struct doctor *d, struct command_probe *probe, struct origin *origin,
                         const char *bucket)
{
    struct command_probe_answer listed, got;
    struct command_probe_ask ask = {.kind = PROBE_LIST, .origin = origin, .bucket = bucket};
    if (command_doctor_is_out_of_time(d)) {
        command_doctor_find(d, DOCTOR_YELLOW, "rights", "name the bucket: forebay doctor BUCKET",
                            "%s: not checked, because other answers came late", bucket);
        return;
    }
    ask_origin(d, probe, &ask, &listed);
    if (!is_good(&listed)) {
        find_refused(d, origin, bucket, PROBE_LIST, &listed);
        return;
    }
    if (listed.key[0] == '\0') {
        command_doctor_find(d, DOCTOR_GREEN, "rights", NULL, "%s: LIST works; it is empty", bucket);
        return;
    }
    ask.key = listed.key;
    ask.kind = PROBE_HEAD;
    ask_origin(d, probe, &ask, &got);
    if (!is_good(&got)) {
        find_refused(d, origin, bucket, PROBE_HEAD, &got);
        return;
    }
    uint64_t size_bytes = got.size_bytes;
    if (size_bytes > 0) {
        ask.kind = PROBE_GET;
        ask_origin(d, probe, &ask, &got);
        if (!is_good(&got)) {
            find_refused(d, origin, bucket, PROBE_GET, &got);
            return;
        }
    }
    command_doctor_find(d, DOCTOR_GREEN, "rights", NULL,
                        "%s: LIST, HEAD and ranged GET work, the last in %.1f ms", bucket,
                        (double)got.total_us / 1000);
    if (got.total_us < (uint64_t)(LATE_S * 1e6)) { // else the wait decides, not the throughput
        command_doctor_speed(d, probe, &ask, size_bytes);
    }
}

// Checks an entry of `buckets`. Skips it if its origin has not answered, because the doctor has
// reported that already.
static void check_entry(struct doctor *d, struct command_probe *probe,
                        const struct answers *answers, unsigned i)
{
    const struct proxy_bucket *bucket = &probe->origins.buckets[i];
    if (i >= BUCKETS_MAX || answers->of_buckets[i]) {
        check_bucket(d, probe, bucket->origin, bucket->origin_bucket);
    }
}

static void check_named_bucket(struct doctor *d, struct command_probe *probe,
                               const struct answers *answers, const char *name)
{
    for (unsigned i = 0; i < d->config->bucket_count; i++) {
        if (strcmp(probe->origins.buckets[i].name, name) == 0) {
            check_entry(d, probe, answers, i);
            return;
        }
    }
    if (answers->of_default) {
        check_bucket(d, probe, probe->origins.origins[0], name);
    }
}

// Checks a bucket that the default origin lists.
static void check_listed_bucket(struct doctor *d, struct command_probe *probe)
{
    const struct command_origins *o = &probe->origins;
    struct command_probe_answer answer;
    struct command_probe_ask ask = {.kind = PROBE_BUCKETS, .origin = o->origins[0]};
    ask_origin(d, probe, &ask, &answer);
    if (is_good(&answer) && answer.key[0] != '\0') {
        check_bucket(d, probe, o->origins[0], answer.key);
    } else if (is_good(&answer)) {
        command_doctor_find(d, DOCTOR_YELLOW, "rights", "name the bucket: forebay doctor BUCKET",
                            "the origin lists no bucket");
    } else if (answer.status == 403 && strstr(answer.text, "AccessDenied") != NULL) {
        command_doctor_find(d, DOCTOR_YELLOW, "rights", "name the bucket: forebay doctor BUCKET",
                            "buckets may not be listed, and none is named");
    } else {
        find_refused(d, o->origins[0], "all buckets", PROBE_BUCKETS, &answer);
    }
}

static void check_rights(struct doctor *d, struct command_probe *probe,
                         const struct answers *answers)
{
    unsigned entries = d->config->bucket_count;
    for (unsigned i = 0; i < d->bucket_count && i < BUCKETS_MAX; i++) {
        check_named_bucket(d, probe, answers, d->buckets[i]);
    }
    for (unsigned i = 0; d->bucket_count == 0 && i < entries && i < BUCKETS_MAX; i++) {
        check_entry(d, probe, answers, i);
    }
    if (d->bucket_count == 0 && entries == 0) {
        check_listed_bucket(d, probe);
    }
}

static void check_with_credentials(struct doctor *d, const struct answers *answers)
{
    struct command_probe probe;
    struct buf why;
    buf_init(&why, 65536);
    enum err err = command_probe_open(&probe, d->config, command_doctor_wait_ms(d), &why);
    if (err == ERR_OK) {
        for (unsigned i = 0; i < probe.origins.origin_count; i++) {
            command_doctor_find(d, DOCTOR_GREEN, "credentials", NULL, "%s",
                                origin_describe(probe.origins.origins[i]));
            command_doctor_expiry(d, probe.origins.origins[i]);
        }
        command_doctor_metadata(d, false);
        check_rights(d, &probe, answers);
    } else if (err == ERR_NOT_FOUND) {
        command_doctor_red_of_origin(d, "origin", "correct the path, or make the directory",
                                     buf_cstr(&why), "directory");
    } else {
        command_doctor_red_of_origin(d, "credentials",
                                     "see credentials.* in `forebay help --man forebay.yaml`",
                                     buf_cstr(&why), "origin");
        command_doctor_metadata(d, true);
    }
    command_probe_close(&probe);
    buf_done(&why);
}

static void check_client(struct doctor *d)
{
    struct origin_client_value endpoint;
    if (command_endpoint_unused(d->config, &endpoint)) {
        char remedy[256];
        (void)snprintf(remedy, sizeof(remedy),
                       "to read from there, give --origin.endpoint %s, or set origin.endpoint",
                       endpoint.word);
        command_doctor_find(d, DOCTOR_YELLOW, "origin", remedy,
                            "%s names an endpoint, and only `forebay run` takes the origin from it",
                            endpoint.source);
    }
}

// Returns true if an entry of `buckets` is at another URL than the default origin.
static bool is_elsewhere(const struct config *c, const struct config_bucket *b)
{
    return b->endpoint != NULL ||
           (b->region != NULL && strstr(c->origin_endpoint, "{region}") != NULL);
}

static void check_endpoints(struct doctor *d, struct answers *ret_answers)
{
    const struct config *c = d->config;
    struct arena *arena = arena_new(NAMES_MAX_BYTES);
    struct origin_settings settings = {0};
    bool of_default = check_endpoint(d, &settings, NULL);
    *ret_answers = (struct answers){.of_default = of_default, .of_any = of_default};
    for (unsigned i = 0; i < c->bucket_count && i < BUCKETS_MAX; i++) {
        const struct config_bucket *b = &c->buckets[i];
        bool answers = b->kind == CONFIG_BUCKET_DIRECTORY || of_default;
        if (is_elsewhere(c, b)) {
            settings = command_origins_settings(arena, b);
            answers = check_endpoint(d, &settings, b);
        }
        ret_answers->of_buckets[i] = answers;
        ret_answers->of_any = ret_answers->of_any || answers;
    }
    arena_free(arena);
}

void command_doctor_origin(struct doctor *d)
{
    const struct config *c = d->config;
    struct answers answers;
    struct buf why;
    buf_init(&why, 4096);
    if (origin_proxy_url(c->origin_proxy, c->origin_proxy_auth_file, &d->proxy_url, &why) !=
        ERR_OK) {
        command_doctor_red_of_origin(d, "origin", "correct origin.proxy_auth_file", buf_cstr(&why),
                                     "origin.proxy");
    }
    buf_done(&why);
    check_client(d);
    d->origin_began_ms = clock_monotonic_ms();
    check_endpoints(d, &answers);
    if (answers.of_any) {
        check_with_credentials(d, &answers);
    }
    free(d->proxy_url);
    d->proxy_url = NULL;
}
