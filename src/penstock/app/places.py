"""Where the parts of a local table and of its state lie."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from penstock.errors import UsageError

LEDGER_FILE = "ledger.db"
LEVELS_BELOW = 3  # how deep tables are looked for below the current folder
STATE_FOLDER = "_penstock"  # readers of the table do not look into folders whose names begin so
WORK_FOLDER = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All paths are real paths."""

    table: Path
    quarantine: Path
    state: Path
    name: str | None = None  # of a declared pipeline

    @property
    def pipeline(self) -> str:
        """The pipeline's id: the name it was declared with, else the table's canonical address."""
        return self.name or self.table.as_uri()

    @property
    def work(self) -> Path:
        """Plans and reports of runs; under the table, since executors have to reach it."""
        return self.table / STATE_FOLDER / WORK_FOLDER

    def queue(self, source: Path) -> str:
        """The queue of one source of this table: another source's worker would not be allowed to read its files."""
        digest = hashlib.sha256(f"{self.pipeline}\n{source}".encode(errors="surrogateescape")).hexdigest()[:8]
        return f"ingest-{digest}"


def real(path: str | PathLike[str]) -> Path:
    """The real path behind a user's path or file address. Raises `UsageError` where that leads nowhere."""
    try:
        return Path(str(path).removeprefix("file://")).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a circle of links, a name with a NUL
        raise UsageError(f"The path {path} leads nowhere: {error}.") from error


def places(table: str | PathLike[str], state: str | PathLike[str] | None = None) -> Places:
    """The places of a table. Raises `UsageError` for an address that is no local path."""
    if "://" in str(table) and not str(table).startswith("file://"):
        raise UsageError(f"{table} is no local path; this version writes tables to local folders.")
    root = real(table)
    if not root.name:
        raise UsageError(f"The table cannot be {root} itself; give a folder in it.")
    if root.exists() and not root.is_dir():
        raise UsageError(f"The table {root} is a file; give the folder that is to hold the table.")
    return Places(
        table=root,
        quarantine=root.with_name(f"{root.name}_quarantine"),
        state=real(state) if state is not None else root / STATE_FOLDER,
    )


def declared_places(name: str, table: str | PathLike[str], *, state: str) -> Places:
    """The places of a pipeline that an app declares: the app's state, and a table under the pipeline's name."""
    return replace(places(table, state), name=name)


def source_folder(source: str | PathLike[str], where: Places) -> Path:
    """The real path of the folder to read. Raises `UsageError` where it is none, or one that Penstock writes itself."""
    if "://" in str(source) and not str(source).startswith("file://"):
        raise UsageError(f"{source} is no local folder; this version reads local folders.")
    folder = real(source)
    if not folder.is_dir():
        what = "is a file; give the folder it lies in" if folder.exists() else "does not exist; give the folder to read"
        raise UsageError(f"The source {folder} {what}.")
    for own in (where.table, where.quarantine, where.state):
        if folder == own:
            raise UsageError(
                f"The source {folder} is a folder that Penstock writes itself; give another table or source."
            )
        if own in folder.parents:
            raise UsageError(f"The source {folder} lies in {own}, which Penstock writes itself; give another folder.")
    return folder


def find_table(table: str | None, state: str | None, *, here: Path) -> Places:
    """The table that an operator's verb means: the one named, else the one here, else the only one below here."""
    if table is not None:
        found = places(table, state)
    else:
        below = tables_here(here, elsewhere=state is not None)
        if len(below) != 1:
            names = ", ".join(str(path.relative_to(here)) for path in below) or "none"
            raise UsageError(f"Which table? Give --table; tables with a state found below {here}: {names}.")
        found = places(below[0], state)
    if (found.state / LEDGER_FILE).is_file():
        return found
    if _lies_elsewhere(found.table / STATE_FOLDER) and state is None:
        raise UsageError(
            f"The table {found.table} has its state elsewhere: for a pipeline of an app give --pipeline NAME in the "
            "app's folder instead of --table; else name the state with --state."
        )
    raise UsageError(
        f"There is no Penstock state in {found.state}; `penstock ingest` makes one, --state names another."
    )


def tables_here(here: Path, *, elsewhere: bool = False) -> Sequence[Path]:
    """The table in this folder, else all that are some levels below; those whose state lies ``elsewhere`` if asked."""
    patterns = ["", *("/".join(["*"] * depth) + "/" for depth in range(1, LEVELS_BELOW + 1))]
    found = [
        sorted(path.parent for path in here.glob(f"{pattern}{STATE_FOLDER}") if elsewhere or not _lies_elsewhere(path))
        for pattern in patterns
    ]
    return found[0] or sorted(path for paths in found for path in paths)


def _lies_elsewhere(folder: Path) -> bool:
    """A pipeline of an app, or an ingest with --state, has only its runs' plans below the table."""
    return (folder / WORK_FOLDER).is_dir() and not (folder / LEDGER_FILE).is_file()
