"""An app whose pipeline cleans up its source, for processes of the tests: the environment selects the cleanup."""

import os

from penstock import App, DeltaSink, ObjectSource, cleanup


def cleanup_from_environment() -> cleanup.Cleanup:
    match os.environ["CLEANUP"]:
        case "tag":
            return cleanup.Tag()
        case "move":
            return cleanup.Move(os.environ["CLEANUP_TO"])
        case _:
            return cleanup.Delete(after=os.environ.get("CLEANUP_AFTER", "0"))


app = App.from_config()
app.pipeline(
    "clicks",
    source=ObjectSource(
        os.environ["CLEANUP_SOURCE"],
        queue="clicks-files",
        schema="id long",
        cleanup=cleanup_from_environment(),
    ),
    sink=DeltaSink(os.environ["CLEANUP_TABLE"]),
)
