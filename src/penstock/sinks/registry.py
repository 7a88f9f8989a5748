"""The table formats. Each is a package and one line in `SINKS`.

The package has the sink and the class that users declare a table with, a `penstock.sinks.declaration.SinkDeclaration`.

A table's address may begin with the scheme of its format and a colon, such as ``iceberg:tables/clicks``. An address
without one is in the default format. A package is imported when a table is opened, as it needs libraries of an extra.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from penstock.errors import ConfigurationError, UsageError
from penstock.storage.files import Files

if TYPE_CHECKING:
    from penstock.sinks.catalogs.name import CatalogName
    from penstock.sinks.sink import TableSink

DEFAULT_SCHEME = "delta"
# below a table's root:
TABLE_MARK = "_penstock/table"  # see `penstock.sinks.checks.mark_table`
CATALOG_FILE = "_penstock/catalog.json"  # the catalog of an Iceberg table, see `penstock.sinks.iceberg.choice`

_SCHEME = re.compile(r"([a-z][a-z0-9]*):(.*)", re.IGNORECASE | re.DOTALL)
# The beginning of an address after an unknown scheme: /, ./, ../, ~, or a scheme such as s3:/. Two slashes belong to
# the word before them, which then names a place and not a format.
_LOCATION = re.compile(r"/(?!/)|\.{1,2}/|~|[a-z][a-z0-9.-]*:/", re.IGNORECASE)
_PLACES = frozenset({"s3", "s3a", "s3n", "file"})  # an address such as s3:/lake is a typo of another kind
_LIKENESS = 0.75  # of a misspelt scheme: "icebreg" and "detla", not "data"

Version = tuple[int, ...]


class CatalogOption(StrEnum):
    """The option of a declaration, and of ``penstock ingest``, that puts a table in a catalog."""

    REGISTER = "register"  # a data catalog lists the table: `SinkDeclaration.catalog_entry`
    CATALOG = "catalog"  # a catalog names the table's newest metadata: `SinkDeclaration.metadata_catalog`


@dataclass(frozen=True, slots=True)
class SinkPackage:
    """The package of one table format."""

    module: str
    factory: str  # a `SinkFactory` in that module
    requires: str  # the library that it imports
    log_folder: str | None = None  # below a table's root: names end in "/", as in `Files.names`
    log_suffix: str = ""  # a folder of this name without such a file holds no table; empty: the name suffices
    declaration: str = "..."  # the subclass of `SinkDeclaration` that users name, for error messages
    extra: str = "pipeline"  # of Penstock, with the library
    tested: tuple[Version, Version] | None = None  # the library's versions: from the first to below the second
    has_transforms: bool = False  # see `has_transforms`
    catalog_option: CatalogOption | None = None  # None: its tables cannot be in a catalog


class SinkFactory(Protocol):
    """Make the sink of one table."""

    def __call__(
        self, root: Files, *, pipeline: str, partition_by: Sequence[str] | None = (), **catalog: "CatalogName"
    ) -> "TableSink":
        """Return the sink, without any access yet. ``partition_by`` None: any partitioning, for reading only.

        ``catalog`` is passed only to formats with `CatalogOption.CATALOG`, if the declaration names one.
        """
        ...


SINKS: Mapping[str, SinkPackage] = {
    DEFAULT_SCHEME: SinkPackage(
        "penstock.sinks.delta.sink",
        "DeltaTableSink",
        "deltalake",
        log_folder="_delta_log/",
        declaration="DeltaSink",
        tested=((1, 6, 6), (1, 7, 0)),
        catalog_option=CatalogOption.REGISTER,
    ),
    "iceberg": SinkPackage(
        "penstock.sinks.iceberg.sink",
        "IcebergTableSink",
        "pyiceberg",
        log_folder="metadata/",
        log_suffix=".metadata.json",
        declaration="IcebergSink",
        extra="iceberg",
        tested=((0, 12, 0), (0, 13, 0)),
        has_transforms=True,
        catalog_option=CatalogOption.CATALOG,
    ),
}

LOG_FOLDERS = frozenset(package.log_folder for package in SINKS.values() if package.log_folder is not None)


def format_in(root: Files, names: Collection[str] | None = None) -> str | None:
    """Return the scheme of the format of the table in a folder, None if there is none. Loads no format's package.

    ``names`` are the folder's, if they are known.
    """
    names = root.names() if names is None else names
    for scheme, package in SINKS.items():
        folder = package.log_folder
        if folder is None or folder not in names:
            continue
        if not package.log_suffix or any(name.endswith(package.log_suffix) for name in root.names(folder.rstrip("/"))):
            return scheme
    return None


def split_address(address: str) -> tuple[str, str]:
    """Return the scheme of a table's format, and the address without it. Raises as `named_scheme`."""
    scheme = named_scheme(address)
    return (DEFAULT_SCHEME, address) if scheme is None else (scheme, address[len(scheme) + 1 :])


def named_scheme(address: str) -> str | None:
    """Return the scheme that an address begins with, None if it names no format.

    Raises `UsageError` if an address follows a scheme that is not registered, or if the scheme is misspelt:
    ``parquet:/lake/clicks`` and ``icebreg:tables/clicks`` would otherwise be folders here.
    """
    found = _SCHEME.fullmatch(address)
    if found is None:
        return None
    if found[1] in SINKS:
        return found[1]
    if found[1] in _PLACES:
        return None
    meant = get_close_matches(found[1].lower(), SINKS, n=1, cutoff=_LIKENESS)
    if meant or _LOCATION.match(found[2]):
        advice = f"write {meant[0]}:{found[2]}, or " if meant else "write "
        raise UsageError(
            f"The table {address} is in no known format, as {found[1]} is not one of {', '.join(SINKS)}; {advice}"
            "./ before a folder that has such a name."
        )
    return None


def address_in(scheme: str, location: str) -> str:
    """Return the address of a table in a format; `split_address` is the reverse."""
    if scheme == DEFAULT_SCHEME and split_address(location) == (scheme, location):
        return location
    return f"{scheme}:{location}"


def open_sink(
    root: Files,
    *,
    pipeline: str,
    partition_by: Sequence[str] | None = (),
    scheme: str = DEFAULT_SCHEME,
    catalog: "CatalogName | None" = None,
) -> "TableSink":
    """Return the sink of a table, without any access yet.

    Args:
        root: The table's location.
        pipeline: The pipeline whose position the sink stores.
        partition_by: The partition columns; None: any partitioning, for reading only.
        scheme: The table's format.
        catalog: The declared catalog of a new table; None: none, or the one that an existing table remembers.

    Raises `ConfigurationError` if PyIceberg's configuration cannot be parsed.
    """
    package = SINKS[scheme]
    factory: SinkFactory = getattr(_imported(package.module), package.factory)
    named = {} if catalog is None else {"catalog": catalog}
    return factory(root, pipeline=pipeline, partition_by=partition_by, **named)


def _imported(module: str) -> ModuleType:
    """Import the package of a format. PyIceberg parses its configuration when it is imported, with strictyaml."""
    try:
        return import_module(module)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "strictyaml":
            raise
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = str(getattr(error, "problem", None) or type(error).__name__).strip()
        raise ConfigurationError(
            f"PyIceberg's configuration cannot be read: .pyiceberg.yaml{where}: {problem}. Correct that file; it is in "
            "PYICEBERG_HOME, the home directory or the current one, and braces and brackets are not allowed in it."
        ) from error


def has_transforms(scheme: str) -> bool:
    """Return True if tables of this format may be partitioned by transforms: see `penstock.sinks.partitions`."""
    return scheme in SINKS and SINKS[scheme].has_transforms


def is_installed(scheme: str) -> bool:
    """Return True if the library that the format needs is installed. Imports nothing."""
    return find_spec(SINKS[scheme].requires) is not None


def untested(scheme: str, version: str) -> str | None:
    """Return a warning if this version of the format's library is outside the tested range, otherwise None.

    Publishing relies on the library's behaviour more than on its interface: see
    docs/why/decisions/deltalake-for-publishing.md.
    """
    package = SINKS[scheme]
    if package.tested is None:
        return None
    first, end = package.tested
    if first <= _release(version) < end:
        return None
    least, below = (".".join(map(str, one)) for one in (first, end))
    return f"{package.requires} {version} is outside the range that Penstock is tested with, >={least},<{below}"


def _release(version: str) -> Version:
    """Return (1, 6, 0) for "1.6" and (1, 6, 6) for "1.6.6". A part that is not a number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in [*version.split("."), "0", "0"][:3])
