# SPDX-License-Identifier: Apache-2.0
"""The one way to wait for a state that causes no event: look again, up to a bound."""

import time

WAIT_S = 60  # bound of every wait; reaching it fails the test


class NeverCame(AssertionError):
    """The state did not come within the bound."""


def wait_for(state, what, wait=WAIT_S, every=0.02, pause=time.sleep):
    """Returns the first true value of state(), which it calls every EVERY seconds for at most WAIT
    seconds.

    The error names the state by WHAT, a text or a function that makes one. PAUSE(seconds) waits
    between two looks. A condition's wait() ends it early.
    """
    deadline = time.monotonic() + wait
    while not (value := state()):
        if time.monotonic() > deadline:
            raise NeverCame(f"not within {wait} s: {what() if callable(what) else what}")
        pause(every)
    return value
