"""What keeps copies of a process out of its work: a user's code may fork, and return twice."""

import os
import traceback
from types import TracebackType


class OwnProcess:
    """Around user code: in a copy of the process that made this, the process ends where that code ends.

    A copy has its parent's claims, receipts and connections, and would record the work and settle the message while
    the parent is still at it. It ends at once, without any cleanup: all that there is to clean is its parent's.
    """

    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = os.getpid()

    def __enter__(self) -> None:
        """The code begins."""

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, where: TracebackType | None
    ) -> None:
        if os.getpid() != self._id:
            _end_copy(raised)


def _end_copy(raised: BaseException | None) -> None:
    """End with 0 where the code returned, with what it asked for at a `SystemExit`, and else with 1."""
    code = 0 if raised is None else 1
    try:
        if isinstance(raised, SystemExit) and (raised.code is None or isinstance(raised.code, int)):
            code = raised.code or 0
        elif raised is not None:
            # Not through sys.stderr, whose lock another thread may have held when the process was copied.
            os.write(2, "".join(traceback.format_exception(raised)).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code & 0xFF)
