"""The paths of a table, its quarantine and its data directory."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike, fsdecode, fspath
from pathlib import Path
from urllib.parse import unquote_to_bytes

from platformdirs import user_state_path

from penstock.config import Settings
from penstock.errors import UsageError
from penstock.sinks.registry import (
    CATALOG_FILE,
    DEFAULT_SCHEME,
    SINKS,
    TABLE_MARK,
    address_in,
    named_scheme,
    split_address,
)
from penstock.storage.address import LOCAL, S3Address, check_address, check_folder, is_s3, s3_address
from penstock.storage.aws import Aws, require_aws
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files

FORMAT_FILE = "format"  # in the data directory of one table: the scheme of its format, unless it is the default
LEDGER_FILE = "ledger.db"
LEVELS_BELOW = 3  # depth of the search for tables below the current folder
QUARANTINE_SUFFIX = "_quarantine"
STATE_FOLDER = "_penstock"  # readers of the table skip folders with this prefix
WORK_FOLDER = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePaths:
    """The paths of a table in a folder or in S3, its quarantine, and its data directory on this host.

    Paths are resolved.
    """

    table: Files
    quarantine: Files
    state: Path
    aws: Aws = field(default_factory=Aws)
    name: str | None = None  # for a declared pipeline
    scheme: str = DEFAULT_SCHEME  # of the table's format, see `penstock.sinks.registry`

    @property
    def pipeline(self) -> str:
        """The pipeline's id: its declared name, else the table's canonical address."""
        return self.name or self.table.uri

    @property
    def work(self) -> Files:
        """The folder of plans and reports of runs; below the table, since executors must reach it."""
        return self.table.below(f"{STATE_FOLDER}/{WORK_FOLDER}")

    @property
    def own(self) -> tuple[Files, ...]:
        """The places that Penstock itself writes."""
        return self.table, self.quarantine, LocalFiles(self.state)

    def queue(self, source: object) -> str:
        """Return the queue of one source of this table.

        A worker for another source must not read this source's files.
        """
        digest = hashlib.sha256(f"{self.pipeline}\n{source}".encode(errors="surrogateescape")).hexdigest()[:8]
        return f"ingest-{digest}"


def real(path: str | PathLike[str]) -> Path:
    """Return the resolved path of a user's path or file address. Raises `UsageError` if it cannot be resolved."""
    text = str(path)
    if text.startswith(LOCAL):
        text = fsdecode(unquote_to_bytes(text.removeprefix(LOCAL)))
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a loop of links, a name with a NUL
        raise UsageError(f"The path {path} cannot be resolved: {error}.") from error


def table_paths(
    table: str | PathLike[str], state: str | PathLike[str] | None = None, *, aws: Aws | None = None
) -> TablePaths:
    """Return the paths of a table. Raises `UsageError` for an address that is neither a folder nor in S3."""
    scheme, location = split_address(fspath(table))
    address = check_address("table", location)
    if state is not None:
        check_folder("state", state)
    if is_s3(address):
        return replace(_s3_table_paths(s3_address(address), state, aws or Aws()), scheme=scheme)
    root = real(location)
    if not root.name:
        raise UsageError(f"The table cannot be {root} itself; give a folder in it.")
    if root.exists() and not root.is_dir():
        raise UsageError(f"The table {root} is a file; give the folder that is to hold the table.")
    files = LocalFiles(root)
    return TablePaths(
        table=files,
        quarantine=files.beside(f"{root.name}{QUARANTINE_SUFFIX}"),
        state=real(state) if state is not None else root / STATE_FOLDER,
        aws=aws or Aws(),
        scheme=scheme,
    )


def declared_table_paths(name: str, table: str | PathLike[str], settings: Settings) -> TablePaths:
    """Return the paths of a declared pipeline: the app's data directory, and a table under the pipeline's name."""
    return replace(table_paths(table, settings.data_dir, aws=settings.aws), name=name)


def find_table(table: str | None, state: str | None, *, here: Path, aws: Aws | None = None) -> TablePaths:
    """Return the table that a command means: the one named, else the one here, else the only one below.

    It has the format that its data directory records, unless its address names one. Raises `UsageError` if there is no
    such table, or if it is in another format than its address says.
    """
    if table is not None:
        found = table_paths(table, state, aws=aws)
    else:
        below = tables_here(here, elsewhere=state is not None)
        if len(below) != 1:
            names = ", ".join(str(path.relative_to(here)) for path in below) or "none"
            raise UsageError(f"Which table? Give --table; tables with a data directory below {here}: {names}.")
        found = table_paths(below[0], state)
    if (found.state / LEDGER_FILE).is_file():
        if table is not None and named_scheme(table) is not None:
            check_format(found)
            return found
        return replace(found, scheme=recorded_format(found) or found.scheme)
    if state is None and found.table.is_local and _lies_elsewhere(Path(str(found.table)) / STATE_FOLDER):
        raise UsageError(
            f"The table {found.table} has its data directory elsewhere: for a pipeline of an app give --pipeline "
            "NAME in the app's folder instead of --table; else name it with --data-dir."
        )
    raise UsageError(
        f"The table {found.table} has no data directory of Penstock: {found.state} has no ledger. `penstock ingest` "
        "makes one, --data-dir names another."
    )


def recorded_format(where: TablePaths) -> str | None:
    """Return the scheme that the data directory of one table records, None if it records none.

    Raises `UsageError` if the format is not registered.
    """
    try:
        scheme = (where.state / FORMAT_FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if scheme not in SINKS:
        raise UsageError(
            f"The table {where.table} is in the format {scheme}, which is not registered; the formats: "
            f"{', '.join(SINKS)}."
        )
    return scheme


def check_format(where: TablePaths) -> None:
    """Raise `UsageError` if the data directory of this table records another format."""
    scheme = recorded_format(where)
    if scheme not in (None, where.scheme):
        raise UsageError(
            f"The table {where.table} is in the format {scheme}, not {where.scheme}: write "
            f"{address_in(scheme, str(where.table))}."
        )


def record_format(where: TablePaths) -> None:
    """Record the format of a table in its data directory, for commands that find the table themselves."""
    if where.scheme != DEFAULT_SCHEME:
        LocalFiles(where.state).write_new(FORMAT_FILE, f"{where.scheme}\n".encode())


def tables_here(here: Path, *, elsewhere: bool = False) -> Sequence[Path]:
    """Return the table in this folder, else all tables up to three levels below.

    ``elsewhere`` includes tables whose data directory is elsewhere.
    """
    patterns = ["", *("/".join(["*"] * depth) + "/" for depth in range(1, LEVELS_BELOW + 1))]
    found = [
        sorted(
            path.parent
            for path in here.glob(f"{pattern}{STATE_FOLDER}")
            if not _is_only_marked(path) and (elsewhere or not _lies_elsewhere(path))
        )
        for pattern in patterns
    ]
    return found[0] or sorted(path for paths in found for path in paths)


def _is_only_marked(folder: Path) -> bool:
    """Return True if the folder marks a table and holds nothing else: a quarantine table of some formats."""
    marks = {folder.parent / TABLE_MARK, folder.parent / CATALOG_FILE}
    found = set(islice(folder.glob("*"), len(marks) + 1))
    return bool(found) and found <= marks


def _s3_table_paths(address: S3Address, state: str | PathLike[str] | None, aws: Aws) -> TablePaths:
    """Return the paths of a table in S3. The default data directory is a user folder named after the table."""
    if not address.prefix:
        raise UsageError(f"The table cannot be the whole bucket {address}; give a prefix in it.")
    require_aws()

    files = S3Files(address, aws)
    digest = hashlib.sha256(files.uri.encode()).hexdigest()[:8]
    return TablePaths(
        table=files,
        quarantine=files.beside(f"{files.name}{QUARANTINE_SUFFIX}"),
        state=real(state) if state is not None else user_state_path("penstock") / f"{files.name}-{digest}",
        aws=aws,
    )


def _lies_elsewhere(folder: Path) -> bool:
    """Return True if the folder holds only the plans of runs: a pipeline of an app, or an ingest with --data-dir."""
    return (folder / WORK_FOLDER).is_dir() and not (folder / LEDGER_FILE).is_file()
