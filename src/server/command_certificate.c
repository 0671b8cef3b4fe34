// SPDX-License-Identifier: Apache-2.0
// Loads the certificate of tls: listeners. Says when it expires, as conditions and as a metric.
#include "server/command_certificate.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/human.h"
#include "http/http.h"

#define SOON_S (14 * 86400)

static void date_render(int64_t time_s, char ret_text[32])
{
    struct tm tm;
    time_t time = (time_t)time_s;
    if (gmtime_r(&time, &tm) == NULL || strftime(ret_text, 32, "%Y-%m-%d %H:%M UTC", &tm) == 0) {
        (void)snprintf(ret_text, 32, "%lld", (long long)time_s);
    }
}

// Returns true if a tls: listener is configured.
static bool is_needed(const struct config *c)
{
    bool has_tls = false;
    for (unsigned i = 0; i < c->listen.count; i++) {
        has_tls = has_tls || c->listen.items[i].kind == CONFIG_LISTEN_TLS;
    }
    return has_tls;
}

enum err command_certificate_load(const struct config *c, struct http_tls **ret_tls,
                                  struct buf *ret_why)
{
    *ret_tls = NULL;
    return is_needed(c) ? http_tls_new(c->listen_tls_cert, c->listen_tls_key, ret_tls, ret_why)
                        : ERR_OK;
}

enum err command_certificate_check(const struct config *c, struct buf *ret_why)
{
    struct http_tls *tls;
    enum err err = command_certificate_load(c, &tls, ret_why);
    http_tls_free(tls);
    return err;
}

void command_certificate_look(struct conditions *conditions)
{
    char date[32], left[HUMAN_TIME_MAX];
    struct http_certificate_life life = http_certificate_life();
    int64_t left_s = life.until_s - (int64_t)clock_wall_s();
    int64_t quarter_s = (life.until_s - life.from_s) / 4;
    bool has_expired = life.until_s != 0 && left_s <= 0;
    bool is_soon =
        life.until_s != 0 && !has_expired && left_s <= (quarter_s < SOON_S ? quarter_s : SOON_S);
    conditions_tell(conditions, CONDITION_certificate_expired, has_expired);
    conditions_tell(conditions, CONDITION_certificate_expiring, is_soon);
    date_render(life.until_s, date);
    if (has_expired) {
        conditions_tell_more(conditions, CONDITION_certificate_expired,
                             conditions_row(CONDITION_certificate_expired).remedy,
                             "the certificate of listen_tls.cert expired on %s: clients refuse it",
                             date);
    }
    if (is_soon) {
        conditions_tell_more(conditions, CONDITION_certificate_expiring,
                             conditions_row(CONDITION_certificate_expiring).remedy,
                             "the certificate of listen_tls.cert expires on %s, in %s; Forebay "
                             "warns of the last 14 days, or of the last quarter of a shorter life",
                             date, human_time(left_s, left));
    }
}

void command_certificate_metrics(struct buf *out)
{
    buf_append_cstr(out, "# HELP forebay_tls_certificate_expiry_timestamp_seconds when the "
                         "certificate of listen_tls.cert expires\n"
                         "# TYPE forebay_tls_certificate_expiry_timestamp_seconds gauge\n");
    int64_t until_s = http_certificate_life().until_s;
    if (until_s != 0) {
        buf_printf(out, "forebay_tls_certificate_expiry_timestamp_seconds %lld\n",
                   (long long)until_s);
    }
}
