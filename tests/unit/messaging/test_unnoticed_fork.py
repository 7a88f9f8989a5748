"""A process that C code forked, of which Python calls no function, and which begins a worker of its own."""

import subprocess
import sys

# In a process of one thread: a copy of several could wait for the lock of a thread that it does not have.
FORKED_BY_C = """
import ctypes, os
from penstock.messaging.forks import OwnProcess

child = ctypes.PyDLL(None).fork()
if child == 0:
    try:
        with OwnProcess():  # created here, by this process
            pass
    finally:
        os._exit(7)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_user_code_that_begins_in_a_copy_does_not_end_it() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED_BY_C], check=False, timeout=60).returncode == 7
