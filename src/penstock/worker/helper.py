"""A thread of the worker's own machinery, whose end and whose failure are heard of."""

import threading
from collections.abc import Callable


class Helper:
    """One such thread. A daemon: one that hangs is left behind."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.done = False  # written by the thread itself
        self._work = work
        self._changed = changed
        self._fail = fail

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
        finally:
            self.done = True
            self._changed()
