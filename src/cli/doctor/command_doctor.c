// SPDX-License-Identifier: Apache-2.0
// `forebay doctor [BUCKET...]`: reports what a start would find, each problem with its remedy. It
// takes a limited time and changes nothing. A server may run at the same time. Without settings and
// buckets, that server is asked first.
#include "cli/doctor/command_doctor.h"

#include "auth/auth.h"
#include "base/log.h"
#include "commands/commands.h"
#include "s3/s3.h"

#define OUTPUT_MAX_BYTES (1u << 20)
#define LINE_SHOWN_MAX 2000u
#define TIMEOUT_S 5u
#define TIMEOUT_MAX_S 60u

// Reports one finding for each line of `errors`.
static void find_errors(struct doctor *doctor, const struct buf *errors, const char *remedy)
{
    struct span rest = buf_span(errors), line;
    while (span_split(&rest, '\n', &line)) {
        struct span sign = SPAN(": warning: ");
        bool is_warning = false;
        for (size_t i = 0; i + sign.len < line.len && !is_warning; i++) {
            is_warning = span_starts_with((struct span){line.ptr + i, line.len - i}, sign);
        }
        if (line.len > 0) {
            command_doctor_find(doctor, is_warning ? DOCTOR_YELLOW : DOCTOR_RED, "configuration",
                                remedy, "%.*s", (int)min_u64(line.len, LINE_SHOWN_MAX), line.ptr);
        }
    }
}

static void check_keys_file(struct doctor *doctor)
{
    struct access_keys *keys = NULL;
    struct buf errors;
    if (doctor->config->auth_mode != CONFIG_AUTH_VERIFY) {
        return;
    }
    buf_init(&errors, OUTPUT_MAX_BYTES);
    if (access_keys_load(doctor->config->auth_keys_file, &keys, &errors) == ERR_OK) {
        access_keys_unref(keys);
    } else {
        find_errors(doctor, &errors,
                    "correct auth.keys_file; `forebay keys new` prints entries for it");
        doctor->exit_code = EXIT_CODE_CONFIGURATION;
    }
    buf_done(&errors);
}

static struct config *check_configuration(struct doctor *doctor, int argc, char **argv)
{
    struct config *config = NULL;
    struct buf errors;
    buf_init(&errors, OUTPUT_MAX_BYTES);
    bool is_good = config_load(argc, argv, &config, &errors) == ERR_OK;
    find_errors(doctor, &errors,
                "correct it there; `forebay help --man forebay.yaml` has every key");
    buf_done(&errors);
    if (!is_good) {
        doctor->exit_code = EXIT_CODE_CONFIGURATION;
        return NULL;
    }
    doctor->config = config;
    check_keys_file(doctor);
    if (doctor->count[DOCTOR_RED] == 0) {
        command_doctor_find(doctor, DOCTOR_GREEN, "configuration", NULL, "valid (%s)",
                            config->file != NULL ? config->file : "no file");
    }
    return config;
}

int command_doctor(int argc, char **argv)
{
    struct doctor doctor = {.buckets = (const char *const *)argv};
    uint64_t seconds = TIMEOUT_S;
    bool is_local = commands_argument_take(&argc, argv, "--local");
    if (!commands_argument_take_number(&argc, argv, "--timeout", 1, TIMEOUT_MAX_S, &seconds)) {
        return commands_usage_error("doctor", "--timeout is 1 to 60 seconds");
    }
    doctor.timeout_ms = 1000 * seconds;
    log_init(LOG_LEVEL_ERROR, false); // findings report what the parts would log
    buf_init(&doctor.out, OUTPUT_MAX_BYTES);
    doctor.bucket_count = commands_common()->operand_count;
    struct config *config = NULL;
    bool has_asked = argc == 0 && !is_local && command_doctor_ask(&doctor);
    if (!has_asked) {
        config = check_configuration(&doctor, argc - (int)doctor.bucket_count,
                                     argv + doctor.bucket_count);
    }
    if (config != NULL) {
        command_doctor_host(&doctor);
        command_doctor_server(&doctor);
        command_doctor_use(&doctor);
        command_doctor_origin(&doctor);
    }
    int code = command_doctor_verdict(&doctor);
    int printed = commands_print_result(&doctor.out);
    config_free(config);
    buf_done(&doctor.out);
    return printed != EXIT_CODE_OK ? printed : code;
}
