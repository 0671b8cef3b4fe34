// SPDX-License-Identifier: Apache-2.0
// Says when the certificate of tls: listeners expires. Any thread.
#ifndef FOREBAY_SERVER_COMMAND_CERTIFICATE_H
#define FOREBAY_SERVER_COMMAND_CERTIFICATE_H

#include "base/bytes.h"
#include "control/control.h"

void command_certificate_look(struct conditions *conditions);
// Appends the metric of the expiry, if there is a certificate.
void command_certificate_metrics(struct buf *out);

#endif
