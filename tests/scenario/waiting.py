# SPDX-License-Identifier: Apache-2.0
"""The one way to wait for something that tells nobody when it happens: look again, up to a
bound."""

import time

WAIT_S = 60  # bound of every wait; reaching it is a failed test


class NeverCame(AssertionError):
    """The state did not come within the bound."""


def wait_for(state, what, wait=WAIT_S, every=0.02, pause=time.sleep):
    """The first true value of state(), looked at EVERY so many seconds for at most WAIT of them.

    WHAT, a text or a function that makes one, says what did not come. PAUSE(seconds) waits between
    two looks: a condition's wait() ends it early.
    """
    deadline = time.monotonic() + wait
    while not (value := state()):
        if time.monotonic() > deadline:
            raise NeverCame(f"not within {wait} s: {what() if callable(what) else what}")
        pause(every)
    return value
