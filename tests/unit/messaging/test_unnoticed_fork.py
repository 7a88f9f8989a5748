"""A process that C code forked, of which Python calls no function, and which begins a worker of its own."""

import ctypes
import os

from penstock.messaging.forks import OwnProcess


def test_user_code_that_begins_in_a_copy_does_not_end_it() -> None:
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        try:
            with OwnProcess():  # created here, by this process
                pass
        finally:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
