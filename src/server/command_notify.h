// SPDX-License-Identifier: Apache-2.0
// What a service manager is told: sd_notify(3) without the library. Main thread.
#ifndef FOREBAY_SERVER_COMMAND_NOTIFY_H
#define FOREBAY_SERVER_COMMAND_NOTIFY_H

// One datagram to NOTIFY_SOCKET, where there is one.
void command_notify(const char *state);
// Returns when all that was sent has been read, or in five seconds.
void command_notify_barrier(void);

#endif
