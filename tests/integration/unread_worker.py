"""An object handler on a folder as a separate process, until its queue is empty. Argument: the folder of its app.

Below it: ``inbox`` is the source, ``read`` has a line for each object that was read.
"""

import os
import sys
from pathlib import Path
from typing import Any

from penstock import App
from penstock.app.serving import serve
from penstock.config import load_settings
from penstock.pipeline import notifications
from penstock.worker.shutdown import StopSignal

QUEUE, HANDLER = "arrivals", "load"


def open_app(folder: Path) -> App:
    state = folder / ".penstock"
    broker, ledger = f"sqlite:///{state}/queue.db", f"sqlite:///{state}/ledger.db"
    app = App(settings=load_settings(data_dir=str(state), broker=broker, ledger=ledger))

    def load(each: Any) -> None:
        with (folder / "read").open("ab") as read:
            read.write(each.read() + b"\n")

    app.object_handler(QUEUE, name=HANDLER, source=str(folder / "inbox"), retry_base=0.05, max_retry_wait=0.1)(load)
    return app


def main() -> None:
    notifications.DELETED_AFTER_SECONDS = float(os.environ["DELETED_AFTER_SECONDS"])
    with open_app(Path(sys.argv[1])) as app:
        serve(app, stop=StopSignal(), until=lambda: not app.broker.stats(QUEUE).messages)


if __name__ == "__main__":
    main()
