// SPDX-License-Identifier: Apache-2.0
// Proves: who is given OpenMetrics, and what of Prometheus text becomes otherwise in it.
#include "test.h"

#include "control/admin_private.h"
#include "stats/stats.h"

Test(admin_openmetrics, goes_to_who_asks_for_it)
{
    static const struct {
        const char *accept;
        bool wanted;
    } cases[] = {
        {"", false},
        {"*/*", false},
        {"text/plain", false},
        {"application/openmetrics-text", true},
        {"Application/OpenMetrics-Text ; Version=1.0.0 ; charset=utf-8", true},
        {"application/openmetrics-text;version=0.0.1", false},
        {"application/openmetrics-text;version=1.0.0;q=0", false},
        {"application/openmetrics-text;version=1.0.0;q=0.000", false},
        {"application/openmetrics-text;q=0.001", true},
        {"application/openmetrics-text;q=x", false},
        {"application/openmetrics-text;q=", false},
        {"application/openmetrics-text;q=1.2.3", false},
        {"application/openmetrics-text;;=;q", false},
        {"application/openmetrics-textual", false},
        {",,;,application/openmetrics-text", true},
        // Prometheus 2.42, and 3.
        {"application/openmetrics-text;version=1.0.0,application/"
         "openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         true},
        {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/"
         "plain;version=0.0.4;q=0.3",
         true},
        {"text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.9", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert_eq(admin_openmetrics_judge(span_from_cstr(cases[i].accept)),
                     cases[i].wanted ? ADMIN_METRICS_OPEN : ADMIN_METRICS_TEXT, "%s",
                     cases[i].accept);
    }
}

Test(admin_openmetrics, protobuf_goes_to_who_asks_for_it)
{
#define FAMILY "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding="
    static const struct {
        const char *accept;
        enum admin_metrics_form form;
    } cases[] = {
        {FAMILY "delimited", ADMIN_METRICS_PROTOBUF},
        {"application/vnd.google.protobuf; encoding=delimited ; "
         "proto=io.prometheus.client.MetricFamily",
         ADMIN_METRICS_PROTOBUF},
        {FAMILY "text", ADMIN_METRICS_TEXT},
        {FAMILY "compact-text,application/openmetrics-text", ADMIN_METRICS_OPEN},
        {"application/vnd.google.protobuf;proto=other", ADMIN_METRICS_TEXT},
        {FAMILY "delimited;q=0", ADMIN_METRICS_TEXT},
        {FAMILY "delimited;q=0.5,text/plain", ADMIN_METRICS_TEXT},
        // Prometheus 2.42 with native histograms, and 3.
        {FAMILY "delimited,application/openmetrics-text;version=1.0.0;q=0.8,"
                "application/openmetrics-text;version=0.0.1;q=0.75,text/"
                "plain;version=0.0.4;q=0.5,*/*;q=0.1",
         ADMIN_METRICS_PROTOBUF},
        {FAMILY
         "delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
         "text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
         ADMIN_METRICS_PROTOBUF},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert_eq(admin_openmetrics_judge(span_from_cstr(cases[i].accept)), cases[i].form, "%s",
                     cases[i].accept);
    }
}

static void expect_rendered(const char *text, const char *expected)
{
    struct buf out;
    buf_init(&out, 4096);
    admin_openmetrics_render(span_from_cstr(text), &out);
    cr_assert_str_eq(buf_cstr(&out), expected);
    buf_done(&out);
}

Test(admin_openmetrics, families_of_counters_lose_their_suffix_and_samples_keep_it)
{
    expect_rendered(
        "# HELP a_total a \"quoted\" text\n# TYPE a_total counter\na_total{x=\"a b_total\"} 1\n",
        "# HELP a a \\\"quoted\\\" text\n# TYPE a counter\na_total{x=\"a b_total\"} 1\n# EOF\n");
    expect_rendered(
        "# HELP h_seconds h\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\"} 1\n",
        "# HELP h_seconds h\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\"} 1\n# EOF\n");
    expect_rendered("", "# EOF\n");
    expect_rendered("# HELP _total\n", "# HELP _total \n# EOF\n");
}

Test(admin_openmetrics, a_bucket_has_its_exemplar_behind_it)
{
    const uint64_t id[2] = {0x0123456789abcdefull, 1};
    stats_exemplar_set(HISTOGRAM_disk_read, 1234, id, 1700000000000005ull);
    expect_rendered(
        "forebay_disk_io_duration_seconds_bucket{op=\"read\",le=\"0.001\"} 4\n"
        "forebay_disk_io_duration_seconds_bucket{op=\"read\",le=\"0.0025\"} 5\n"
        "forebay_disk_io_duration_seconds_count{op=\"read\"} 5\n"
        "forebay_disk_io_duration_seconds_bucket{op=\"write\",le=\"0.0025\"} 5\n",
        "forebay_disk_io_duration_seconds_bucket{op=\"read\",le=\"0.001\"} 4\n"
        "forebay_disk_io_duration_seconds_bucket{op=\"read\",le=\"0.0025\"} 5 # "
        "{trace_id=\"0123456789abcdef0000000000000001\"} 0.001234 1700000000.000005\n"
        "forebay_disk_io_duration_seconds_count{op=\"read\"} 5\n"
        "forebay_disk_io_duration_seconds_bucket{op=\"write\",le=\"0.0025\"} 5\n# EOF\n");
    expect_rendered("x_bucket\nx_bucket{\nx_bucket}\nx_bucket{}\nx_bucket{} 1\n{} 1\n",
                    "x_bucket\nx_bucket{\nx_bucket}\nx_bucket{}\nx_bucket{} 1\n{} 1\n# EOF\n");
}
