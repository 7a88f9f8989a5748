"""Obeying permissions where the tests are run by root, to whom everything is permitted."""

import ctypes
import os

_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def obey_permissions() -> None:
    """In a child, before it becomes another program: root, too, may then read and write only what permissions say."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "root without the right to give up rights")
