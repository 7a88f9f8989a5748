"""The AWS Glue Data Catalog: Athena, EMR, Glue jobs and Redshift Spectrum find tables in it.

An entry is a table whose parameter ``spark.sql.sources.provider`` is ``delta``, with the location also as the serde's
``path``: the form that Spark writes and that Athena reads (Athena's user guide, "Synchronize Delta Lake metadata").
Columns are listed because Lake Formation and views need them; engines themselves take them from the table's log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.sinks.catalogs.catalog import CatalogEntry, CatalogError, Change, type_text
from penstock.sinks.catalogs.name import CatalogName
from penstock.storage.aws import Aws

_PROVIDER = "spark.sql.sources.provider"
# The fields of a table that update_table accepts. Others, such as CreateTime, are Glue's own.
_INPUT_FIELDS = (
    *("Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor"),
    *("PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable"),
)
_HIVE_NAMES = {"timestamp_ntz": "timestamp"}


class GlueCatalog:
    """The Glue Data Catalog of the account and region of the AWS settings."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def register(self, name: CatalogName, entry: CatalogEntry) -> Change:
        """Create or update the entry; see `penstock.sinks.catalogs.catalog.Catalog`."""
        database, table = name.parts
        client = self._client()
        found = _call(name, client.get_table, DatabaseName=database, Name=table)
        if found is None:
            try:
                _call(name, client.create_table, DatabaseName=database, TableInput=_new_table(table, entry))
                return Change.CREATED
            except _AlreadyThere:  # another process was first
                found = _call(name, client.get_table, DatabaseName=database, Name=table)
        if found is None:
            raise CatalogError(f"The entry {name} was deleted while it was registered; the next attempt creates it.")
        return self._update(client, name, entry, found["Table"])

    def _client(self) -> Any:
        try:
            return self._aws.client("glue")
        except ConfigurationError as error:
            raise CatalogError(str(error)) from error

    def _update(self, client: Any, name: CatalogName, entry: CatalogEntry, found: Mapping[str, Any]) -> Change:
        storage = dict(found.get("StorageDescriptor") or {})
        _check_same(name, entry, found, storage)
        wanted = hive_columns(entry.schema)
        if [(column["Name"], column.get("Type")) for column in storage.get("Columns", ())] == [
            (column["Name"], column["Type"]) for column in wanted
        ]:
            return Change.NONE
        comments = {column["Name"]: column["Comment"] for column in storage.get("Columns", ()) if "Comment" in column}
        storage["Columns"] = [
            {**column, "Comment": comments[column["Name"]]} if column["Name"] in comments else column
            for column in wanted
        ]
        changed = {key: found[key] for key in _INPUT_FIELDS if key in found} | {"StorageDescriptor": storage}
        version = {"VersionId": found["VersionId"]} if "VersionId" in found else {}  # conditional on what was read
        _call(name, client.update_table, DatabaseName=name.parts[0], TableInput=changed, SkipArchive=True, **version)
        return Change.UPDATED


def hive_columns(schema: pa.Schema) -> Sequence[Mapping[str, str]]:
    """Return the columns in Glue's form: names in lower case, types as Hive writes them."""
    return [{"Name": field.name.lower(), "Type": type_text(field.type, _HIVE_NAMES).lower()} for field in schema]


def _new_table(name: str, entry: CatalogEntry) -> Mapping[str, Any]:
    location = f"{entry.location.rstrip('/')}/"
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"EXTERNAL": "TRUE", _PROVIDER: "delta", "classification": "delta"},
        "StorageDescriptor": {
            "Columns": hive_columns(entry.schema),
            "Location": location,
            "SerdeInfo": {"Parameters": {"path": location}},
        },
        "PartitionKeys": [],  # partitions of a Delta table are in its log, and not in the catalog
    }


def _check_same(name: CatalogName, entry: CatalogEntry, found: Mapping[str, Any], storage: Mapping[str, Any]) -> None:
    """Raise `CatalogError` unless the entry that the catalog has is this table's."""
    location = str(storage.get("Location", ""))
    if location.rstrip("/").replace("s3a://", "s3://", 1) != entry.location.rstrip("/"):
        raise CatalogError(
            f"The entry {name} is that of {location or 'a table without a location'} and not of {entry.location}; give "
            "another name (register), or delete that entry."
        )
    kinds = found.get("Parameters") or {}
    kind = kinds.get(_PROVIDER) or kinds.get("table_type") or ""
    if kind.lower() != "delta":
        raise CatalogError(
            f"The entry {name} is not that of a Delta table (it is {kind or found.get('TableType', 'another table')}); "
            "give another name (register), or delete that entry."
        )


class _AlreadyThere(Exception):
    """The catalog has an entry of that name already."""


def _call(name: CatalogName, request: Callable[..., Any], **arguments: Any) -> Any:
    """Return Glue's response; None for an entry that does not exist. Raises `CatalogError` for other failures."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return request(**arguments)
    except ClientError as error:
        code, text = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if code == "AlreadyExistsException":
            raise _AlreadyThere from error
        if code == "EntityNotFoundException":
            if "atabase" in text:
                raise CatalogError(
                    f"The table cannot be registered as {name}: Glue has no database {name.parts[0]}; create it, or "
                    "give another name (register)."
                ) from error
            return None
        raise CatalogError(f"The table cannot be registered as {name}: Glue refuses it ({code}: {text}).") from error
    except BotoCoreError as error:
        raise CatalogError(f"The table cannot be registered as {name}: {str(error).rstrip('.')}.") from error
