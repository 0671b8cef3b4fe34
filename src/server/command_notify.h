// SPDX-License-Identifier: Apache-2.0
// Notifies the service manager like sd_notify(3), without its library. Runs on the main thread.
#ifndef FOREBAY_SERVER_COMMAND_NOTIFY_H
#define FOREBAY_SERVER_COMMAND_NOTIFY_H

// Sends one datagram to NOTIFY_SOCKET, if it is set.
void command_notify(const char *state);
// Waits until the service manager has read all notifications, at most five seconds.
void command_notify_barrier(void);

#endif
