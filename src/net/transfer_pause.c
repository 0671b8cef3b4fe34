// SPDX-License-Identifier: Apache-2.0
// Records which transfers and lanes pool_drive() must act on, and pauses and resumes transfers in
// curl. Runs on the pool's worker.
#include "net/transfer_private.h"

void transfer_changed(struct transfer *t)
{
    if (!list_node_linked(&t->changed_node)) {
        list_push_back(&t->pool->changed, &t->changed_node);
    }
    worker_defer(t->pool->worker, &t->pool->drive);
}

void transfer_abort(struct transfer *t, enum err err)
{
    if (t->abort_err == ERR_OK) {
        t->abort_err = err;
    }
    transfer_changed(t);
}

void transfer_note_socket(struct transfer *t)
{
    check(t->magic == TRANSFER_MAGIC);
    if (t->wait == WAIT_CONNECT) {
        t->must_run = true;
        transfer_changed(t);
    }
}

void transfer_lane_is_due(struct transfer_lane *lane)
{
    if (!list_node_linked(&lane->due_node)) {
        list_push_back(&lane->pool->due, &lane->due_node);
    }
    worker_defer(lane->pool->worker, &lane->pool->drive);
}

// Returns the directions to pause in curl. If only receiving is paused, curl receives once more and
// keeps the data. So a transfer without an upload is paused in both directions.
static int transfer_pause_mask(const struct transfer *t)
{
    if (t->body_length == 0) {
        return t->body_pause.is_in_curl ? CURLPAUSE_ALL : CURLPAUSE_CONT;
    }
    return (t->body_pause.is_in_curl ? CURLPAUSE_RECV : CURLPAUSE_RECV_CONT) |
           (t->upload_pause.is_in_curl ? CURLPAUSE_SEND : CURLPAUSE_SEND_CONT);
}

CURLcode transfer_tell_curl(struct transfer *t)
{
    // Before the end of the response head there is no body to pause, and curl would drop the pause
    // when the request starts.
    bool is_held =
        (t->body_pause.is_wanted || list_node_linked(&t->turn_node)) && t->head == HEAD_OVER;
    if (is_held == t->body_pause.is_in_curl &&
        t->upload_pause.is_wanted == t->upload_pause.is_in_curl) {
        return CURLE_OK;
    }
    t->body_pause.is_in_curl = is_held;
    t->upload_pause.is_in_curl = t->upload_pause.is_wanted;
    bool was_in_curl = t->pool->is_in_curl;
    t->pool->is_in_curl = true;
    // Before it returns, this may deliver bytes that curl has kept, and their callback may pause
    // the transfer again.
    CURLcode code = curl_easy_pause(t->easy, transfer_pause_mask(t));
    t->pool->is_in_curl = was_in_curl;
    transfer_lane_is_due(t->lane);
    return code;
}

void transfer_wait(struct transfer *t)
{
    transfer_turn_wait(t);
    if (transfer_tell_curl(t) != CURLE_OK) {
        transfer_abort(t, ERR_NO_MEMORY);
    }
}
