// SPDX-License-Identifier: Apache-2.0
// Loads the certificate of tls: listeners, and says when it expires. Any thread.
#ifndef FOREBAY_SERVER_COMMAND_CERTIFICATE_H
#define FOREBAY_SERVER_COMMAND_CERTIFICATE_H

#include "base/bytes.h"
#include "config/config.h"
#include "control/control.h"

struct http_tls;

// Reads and compares listen_tls.cert and listen_tls.key. *ret_tls is NULL if no listener needs
// them. On ERR_INVALID ret_why gets one line. May block.
enum err command_certificate_load(const struct config *c, struct http_tls **ret_tls,
                                  struct buf *ret_why) MUST_USE;
// Does the same, for commands that inspect a configuration without a server.
enum err command_certificate_check(const struct config *c, struct buf *ret_why) MUST_USE;
void command_certificate_look(struct conditions *conditions);
// Appends the metric of the expiry, if there is a certificate.
void command_certificate_metrics(struct buf *out);

#endif
