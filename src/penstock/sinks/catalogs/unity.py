"""Unity Catalog, of Databricks or the open source server: tables are registered as external tables.

The REST interface has no request that changes the columns of a table. Databricks takes new ones from the table's log
(``MSCK REPAIR TABLE ... SYNC METADATA``, or its next write), so an entry that exists is left as it is.
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pyarrow as pa
from pyarrow import types

from penstock.sinks.catalogs.catalog import CatalogEntry, CatalogError, Change, check_same, type_text
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.schema import encode, type_name

CALL_SECONDS = 10.0  # bound of one request; a later registration tries again
RESPONSE_BYTES_MAX = 16 << 20  # an entry with thousands of columns has megabytes
MESSAGE_CHARS_MAX = 300
_PATH = "api/2.1/unity-catalog/tables"
_TYPE_NAMES = {"integer": "INT"}  # others: the type's own name in capitals


class UnityCatalog:
    """A Unity Catalog server at a URL, with an access token if it wants one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._opener = build_opener(_NoRedirects())  # a redirect would send the token to another host

    def register(self, name: CatalogName, entry: CatalogEntry) -> Change:
        """Create the entry unless it exists; see `penstock.sinks.catalogs.catalog.Catalog`."""
        found = self._get(name)
        if found is None:
            if self._call(name, "POST", _PATH, body=_new_table(name, entry), accepted=(409,)) is not None:
                return Change.CREATED
            found = self._get(name)  # another process was first
        if found is None:
            raise CatalogError(
                f"The table cannot be registered as {name}: the catalog has an entry of that name, which this token "
                "may not see."
            )
        location, kind = (str(found.get(key) or "") for key in ("storage_location", "data_source_format"))
        check_same(name, entry, location=location, kind=kind)
        return Change.NONE

    def _get(self, name: CatalogName) -> Mapping[str, Any] | None:
        return self._call(name, "GET", f"{_PATH}/{quote('.'.join(name.parts), safe='.')}", accepted=(404,))

    def _call(
        self,
        name: CatalogName,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        accepted: Sequence[int],
    ) -> Mapping[str, Any] | None:
        """Return the response; None for a status in ``accepted``. Raises `CatalogError` for any other failure."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=CALL_SECONDS) as response:
                found = json.loads(response.read(RESPONSE_BYTES_MAX))
        except HTTPError as error:
            with error:
                if error.code in accepted:
                    return None
                raise CatalogError(f"The table cannot be registered as {name}: {_refusal(error)}.") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CatalogError(
                f"The table cannot be registered as {name}: {self._url} does not respond as a Unity Catalog ({error})."
            ) from error
        if not isinstance(found, dict):
            raise CatalogError(f"The table cannot be registered as {name}: {self._url} is no Unity Catalog.")
        return found


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect: it becomes an `HTTPError`."""


def _new_table(name: CatalogName, entry: CatalogEntry) -> Mapping[str, Any]:
    catalog, schema, table = name.parts
    return {
        "name": table,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "storage_location": entry.location,
        "columns": _columns(entry.schema),
    }


def _columns(schema: pa.Schema) -> Sequence[Mapping[str, Any]]:
    documents = json.loads(encode(schema))["fields"]  # in Spark's form
    return [
        {
            "name": field.name,
            "type_text": type_text(field.type),
            "type_json": json.dumps(document, separators=(",", ":")),
            "type_name": _type_name(field.type),
            "position": position,
            "nullable": True,
            **_precision(field.type),
        }
        for position, (field, document) in enumerate(zip(schema, documents, strict=True))
    ]


def _precision(kind: pa.DataType) -> Mapping[str, int]:
    return {"type_precision": kind.precision, "type_scale": kind.scale} if types.is_decimal(kind) else {}


def _type_name(kind: pa.DataType) -> str:
    for is_kind, name in ((types.is_struct, "STRUCT"), (types.is_list, "ARRAY"), (types.is_map, "MAP")):
        if is_kind(kind):
            return name
    if types.is_decimal(kind):
        return "DECIMAL"
    name = type_name(kind)
    return _TYPE_NAMES.get(name, name.upper())


def _refusal(error: HTTPError) -> str:
    """Return the reason of a refused request in one line."""
    if error.code == 401:
        return "the token is refused (401): set tables.unity_token"
    try:
        message = str(json.loads(error.read(RESPONSE_BYTES_MAX))["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        message = error.reason
    return f"the catalog refuses it ({error.code}: {' '.join(str(message).split())[:MESSAGE_CHARS_MAX].rstrip('.')})"
