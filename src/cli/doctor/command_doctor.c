// SPDX-License-Identifier: Apache-2.0
// `forebay doctor [BUCKET...]`: reports what a start would find, each problem with its remedy. It
// takes a limited time and changes nothing. A server may run at the same time. Without settings,
// that server is asked first.
#include "cli/doctor/command_doctor.h"

#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "base/child.h"
#include "base/log.h"
#include "cli/client/command_unit.h"
#include "s3/s3.h"
#include "server/server.h"

#define OUTPUT_MAX_BYTES (1u << 20)
#define LINE_SHOWN_MAX 2000u
#define TIMEOUT_MIN_MS 1000u
#define TIMEOUT_MAX_MS 60000u

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

// Judges files as a start would.
static void check_files(struct doctor *doctor,
                        enum err (*judge)(const struct config *config, struct buf *ret_why),
                        const char *remedy)
{
    struct buf why;
    buf_init(&why, OUTPUT_MAX_BYTES);
    if (judge(doctor->config, &why) != ERR_OK) {
        doctor->exit_code = EXIT_CODE_CONFIGURATION;
    }
    find_errors(doctor, &why, remedy);
    buf_done(&why);
}

static void check_unit(struct doctor *doctor)
{
    char name[COMMAND_UNIT_NAME_MAX];
    if (command_unit_differs(doctor->config, name)) {
        command_doctor_find(doctor, DOCTOR_YELLOW, "configuration",
                            "to look with it: (set -a; . " COMMAND_UNIT_VARIABLES
                            "; forebay doctor)",
                            COMMAND_UNIT_VARIABLES " sets %s for the packaged unit alone",
                            commands_visible(name, strlen(name)));
    }
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
    check_files(doctor, command_certificate_check,
                "complete the renewal: listen_tls.cert and listen_tls.key must be a pair");
    check_files(doctor, command_unit_check_access_log,
                "make the folder for this user, or set access_log.path");
    if (doctor->count[DOCTOR_RED] == 0) {
        command_doctor_find(doctor, DOCTOR_GREEN, "configuration", NULL, "valid (%s)",
                            config->file != NULL ? config->file : "no file");
    }
    check_unit(doctor);
    return config;
}

static void inform_of_settings(const struct config *config, struct buf *why)
{
    char url[COMMAND_ORIGINS_URL_MAX];
    const char *origin = config->origin_endpoint;
    origin = command_origins_url(origin, config->origin_region, url) ? url : origin;
    command_screen_inform(
        2, "forebay doctor: %s; checking the settings of this command: %s, origin %s\n",
        commands_visible(buf_cstr(why), why->len),
        config->file != NULL ? config->file : "no configuration file",
        commands_visible(origin, strlen(origin)));
}

// Reports the conditions of the server, which runs although its configuration is not valid any
// more.
static void look_at_server(struct doctor *doctor)
{
    struct doctor_peer peer;
    command_doctor_peer_find(doctor, &peer);
    command_doctor_server(doctor);
    command_doctor_peer_done(&peer);
    command_doctor_find(doctor, DOCTOR_YELLOW, "configuration",
                        "correct the configuration, and run forebay doctor again",
                        "directory, disk, ports and origin were not checked: the server runs with "
                        "settings that are no longer in the file");
}

// Returns the configuration to look with: that of the command, or, if that is not valid, the one
// that the server of --admin runs with. Returns NULL if there is none.
static struct config *choose_configuration(struct doctor *doctor, int argc, char **argv)
{
    struct config *config = check_configuration(doctor, argc, argv);
    if (config != NULL || commands_common()->admin == NULL) {
        return config;
    }
    config = command_doctor_running(doctor);
    if (config == NULL) {
        look_at_server(doctor);
        return NULL;
    }
    command_doctor_find(doctor, DOCTOR_GREEN, "configuration", NULL,
                        "the server runs with its former configuration; the other checks use that");
    doctor->config = config;
    return config;
}

// Looks with the settings of the command. `why`: why no server looks; empty if none was asked.
static void look_here(struct doctor *doctor, int argc, char **argv, struct buf *why)
{
    struct doctor_peer peer;
    struct config *config = choose_configuration(doctor, argc, argv);
    if (config != NULL && why->len > 0) {
        inform_of_settings(config, why);
    }
    if (config != NULL) {
        command_doctor_peer_find(doctor, &peer);
        command_doctor_host(doctor);
        command_doctor_server(doctor);
        command_doctor_clients(
            doctor, peer.has_cache ? command_doctor_peer_address : commands_listen_address,
            peer.has_cache ? (const void *)peer.version : config);
        command_doctor_exposure(doctor);
        command_doctor_origin(doctor);
        command_doctor_peer_done(&peer);
    }
    doctor->config = NULL;
    config_free(config);
}

int command_doctor(int argc, char **argv)
{
    struct doctor doctor = {.buckets = (const char *const *)argv,
                            .bucket_count = commands_common()->operand_count};
    struct buf why;
    child_end_with_reader(STDOUT_FILENO); // a server that asked for the report may be killed
    doctor.is_local = commands_argument_take(&argc, argv, "--local");
    int setting_count = argc - (int)doctor.bucket_count;
    doctor.timeout_ms =
        min_u64(max_u64(commands_common()->timeout_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS);
    log_init(LOG_LEVEL_ERROR, false); // findings report what the parts would log
    buf_init(&doctor.out, OUTPUT_MAX_BYTES);
    buf_init(&why, OUTPUT_MAX_BYTES);
    if (setting_count > 0 || doctor.is_local || !command_doctor_ask(&doctor, &why)) {
        look_here(&doctor, setting_count, argv + doctor.bucket_count, &why);
    }
    buf_done(&why);
    int code = command_doctor_verdict(&doctor);
    int printed = commands_print_result(&doctor.out);
    buf_done(&doctor.out);
    return printed != EXIT_CODE_OK ? printed : code;
}
