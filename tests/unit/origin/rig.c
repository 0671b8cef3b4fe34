// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include "test.h"

void rig_options(struct rig *rig, const struct server_row *rows, unsigned row_count)
{
    memset(rig, 0, sizeof(*rig));
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_REGION");
    unsetenv("AWS_DEFAULT_REGION");
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    server_start(&rig->server, rows, row_count);
    rig->options = harness_options(rig->server.endpoint);
}

void rig_begin(struct rig *rig)
{
    cr_assert_eq(harness_init(&rig->h, 2, DISK_ENGINE_THREADS, &rig->options), ERR_OK, "%s",
                 buf_cstr(&rig->h.why));
}

void rig_start(struct rig *rig, const struct server_row *rows, unsigned row_count)
{
    rig_options(rig, rows, row_count);
    rig_begin(rig);
}

void rig_end(struct rig *rig)
{
    harness_done(&rig->h);
    server_stop(&rig->server);
    server_done(&rig->server);
}

bool rig_asked(struct rig *rig, unsigned i, const char *text)
{
    return strstr(server_request(&rig->server, i), text) != NULL;
}

bool rig_asked_nocase(struct rig *rig, unsigned i, const char *text)
{
    return strcasestr(server_request(&rig->server, i), text) != NULL;
}

char *rig_answer(const char *status, const char *headers, const char *body)
{
    size_t size = strlen(body) + strlen(headers) + 256;
    char *text = malloc(size);
    snprintf(text, size,
             "HTTP/1.1 %s\r\nContent-Type: application/xml\r\n%sContent-Length: %zu\r\n\r\n%s",
             status, headers, strlen(body), body);
    return text;
}
