"""One delivery in the hands of a plain function."""

import sys
import threading
import traceback

from penstock.handlers.call import Call, Opened, Surroundings
from penstock.messaging.delivery import Delivery
from penstock.messaging.function import run_to_its_end
from penstock.messaging.handler import Answer


class PlainCall(Call):
    """On a thread of the pool."""

    def __init__(self, delivery: Delivery, around: Surroundings) -> None:
        super().__init__(delivery, around)
        self._thread_id: int | None = None  # written by the thread that runs

    def run(self) -> Answer:
        self._thread_id = threading.get_ident()
        opened = self.open()
        if not isinstance(opened, Opened):
            return opened
        try:
            with self._time.counted(), self._process:
                if opened.cleanup:
                    run_to_its_end(self.cleaned(opened))
                result = run_to_its_end(self.called(opened))
        except BaseException as raised:  # SystemExit too: the delivery must not hang on what user code does
            return self.failed(raised)
        return self.finish(result)

    def _where(self) -> str | None:
        frame = sys._current_frames().get(self._thread_id or 0)
        return None if frame is None else "".join(traceback.format_stack(frame))
