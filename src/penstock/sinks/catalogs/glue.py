"""The AWS Glue Data Catalog: Athena, EMR, Glue jobs and Redshift Spectrum find tables in it.

An entry is a table whose parameter ``spark.sql.sources.provider`` is ``delta``, with the location also as the serde's
``path``: the form that Spark writes and that Athena reads (Athena's user guide, "Synchronize Delta Lake metadata").
Columns are listed because Lake Formation and views need them; engines themselves take them from the table's log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.sinks.catalogs.catalog import CatalogEntry, CatalogError, Change, check_same, type_text
from penstock.sinks.catalogs.name import CatalogName
from penstock.storage.aws import Aws

# Bounds of one request. A later registration tries again.
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 10.0
CALLS_MAX = 2

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
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=RESPONSE_SECONDS,
            retries={"mode": "standard", "total_max_attempts": CALLS_MAX},
            user_agent_extra="penstock",
        )
        try:
            return self._aws.client("glue", config=config)
        except ConfigurationError as error:
            raise CatalogError(str(error)) from error

    def _update(self, client: Any, name: CatalogName, entry: CatalogEntry, found: Mapping[str, Any]) -> Change:
        storage = dict(found.get("StorageDescriptor") or {})
        parameters = found.get("Parameters") or {}
        kind = parameters.get(_PROVIDER) or parameters.get("table_type") or found.get("TableType") or ""
        check_same(name, entry, location=str(storage.get("Location", "")), kind=kind)
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
