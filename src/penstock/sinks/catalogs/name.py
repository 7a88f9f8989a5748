"""The names of tables in data catalogs. Needs no library of a catalog or of a table format."""

import re
from dataclasses import dataclass, replace

from penstock.errors import UsageError
from penstock.storage.address import is_s3

_PARTS = {"glue": ("DATABASE", "TABLE"), "unity": ("CATALOG", "SCHEMA", "TABLE")}  # by scheme
_NAMES = {  # the characters that the catalog allows; its limit is 255, and a quarantine table has a longer name
    "glue": re.compile(r"[a-z0-9_]{1,240}"),  # Athena's limits: Glue itself allows more
    "unity": re.compile(r"[^\x00-\x20./\x7f]{1,240}"),
}
_CONFIGURED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # a catalog in PyIceberg's configuration
_CONFIGURED_PART = _NAMES["unity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogName:
    """The name of a table in a catalog.

    ``glue:DATABASE.TABLE`` and ``unity:CATALOG.SCHEMA.TABLE`` are entries of Delta tables. An Iceberg table is
    ``NAME:NAMESPACE.TABLE``, in the catalog NAME of PyIceberg's configuration.
    """

    scheme: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scheme}:{'.'.join(self.parts)}"

    def suffixed(self, suffix: str) -> "CatalogName":
        """Return the name of a table beside this one."""
        return replace(self, parts=(*self.parts[:-1], f"{self.parts[-1]}{suffix}"))


def configured_name(text: str) -> CatalogName:
    """Return the name of an Iceberg table: ``NAME:NAMESPACE.TABLE``; a namespace may have several parts.

    Raises `UsageError` for a text that is no such name.
    """
    name, colon, rest = text.partition(":")
    parts = tuple(rest.split("."))
    if not (colon and _CONFIGURED.fullmatch(name) and len(parts) > 1 and all(map(_CONFIGURED_PART.fullmatch, parts))):
        raise UsageError(
            f"The catalog {text!r} names no table; write NAME:NAMESPACE.TABLE, where NAME is a catalog of PyIceberg's "
            "configuration."
        )
    return CatalogName(scheme=name, parts=parts)


def catalog_name(text: str, *, table: str) -> CatalogName:
    """Return the name of a table in a catalog. ``table`` is the table's address.

    Raises `UsageError` for a text that is no such name, and for a table that the catalog cannot have.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in _PARTS:
        raise UsageError(
            f"The catalog entry {text!r} names no catalog; write glue:DATABASE.TABLE or unity:CATALOG.SCHEMA.TABLE."
        )
    wanted, parts = ".".join(_PARTS[scheme]), tuple(rest.split("."))
    if len(parts) != len(_PARTS[scheme]) or not all(parts):
        raise UsageError(f"The catalog entry {text!r} does not have the parts {scheme}:{wanted}.")
    for part in parts:
        if not _NAMES[scheme].fullmatch(part):
            allowed = "lowercase letters, digits and underscores" if scheme == "glue" else "no dots, slashes or blanks"
            raise UsageError(
                f"The catalog entry {text!r} has the part {part!r}; a name has up to 240 characters: {allowed}."
            )
    if scheme == "glue" and not is_s3(table):
        raise UsageError(f"The table {table} cannot be registered as {text}: Glue is for tables in S3.")
    return CatalogName(scheme=scheme, parts=parts)
