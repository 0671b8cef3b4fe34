// SPDX-License-Identifier: Apache-2.0
// Proves: a line of the server's log becomes a sentence for people.
#include "test.h"

#include "cli/client/command_log_line.h"

static void expect(const char *line, const char *text)
{
    struct buf out;
    buf_init(&out, 4096);
    command_log_line_append(&out, span_from_cstr(line));
    cr_assert_str_eq(buf_cstr(&out), text);
    buf_done(&out);
}

Test(command_log_line, text_and_remedy_of_the_line_are_shown_without_its_keys)
{
    expect(
        "ts=1 level=warn event=origin_unreachable origin=s3 why=refused text=\"it is \\\"off\\\"\" "
        "remedy=\"start it\"",
        "origin unreachable: it is \"off\"; start it");
    expect("ts=1 level=warn event=cache_size_beyond_disk size_bytes=3221225472 room_bytes=9 "
           "remedy=\"free some\"",
           "cache size beyond disk (size 3.0 GiB, room 9 B); free some");
    expect("event=condition_begun name=disk-full severity=critical text=\"no room\" remedy=\"make "
           "it\"",
           "disk-full: no room; make it");
    expect("ts=1 level=error event=pins_damaged why=bad_line file=pins remedy=pin_again",
           "pins damaged: bad_line; pin_again");
}

Test(command_log_line, underscores_of_settings_and_variables_stay)
{
    expect("ts=1 level=warn event=condition_begun name=origin-unreachable severity=critical "
           "text=\"AWS_PROFILE is ours\" remedy=\"set origin.ca_file to /etc/a_b.pem\"",
           "origin-unreachable: AWS_PROFILE is ours; set origin.ca_file to /etc/a_b.pem");
}

Test(command_log_line, line_without_a_text_shows_its_fields)
{
    expect("ts=1 level=warn event=other_boot cuts=2", "other boot (cuts 2)");
    expect("ts=1 level=warn event=clean_stop_not_marked", "clean stop not marked");
    expect("event=a k=\"x y\" z=", "a (k x y, z )");
}

Test(command_log_line, damaged_line_ends_without_a_crash)
{
    expect("", "");
    expect("panic: no fields", "");
    expect("event=\"a", "a");
    expect("event=a text=\"b\\", "a: b\\");
}
