"""Where the files of an attempt lie. Attempt ids are ULIDs of our own making, never names from outside."""

from penstock.storage.files import Files

DATA_FOLDER = "data"  # below a table's root
COMPACTED_FOLDER = "compacted"  # below a table's root
RECORDS_FOLDER = "_penstock/batches"  # below a table's root, where neither its readers nor a vacuum look


def run_files(attempt_id: str, run: int) -> str:
    """Files of one run, relative to the root of the table they are for. A repeated run has a folder of its own."""
    return f"{DATA_FOLDER}/{attempt_id}/r{run}"


def run_work(work: Files, attempt_id: str, run: int) -> Files:
    """Plan and reports of one run."""
    return work.below(f"{attempt_id}/r{run}")


def attempt_of(path: str) -> str:
    """The attempt that a file below `DATA_FOLDER` is named after; of any other path something that is none."""
    folder, _, rest = path.partition("/")
    return rest.partition("/")[0] if folder == DATA_FOLDER else ""
