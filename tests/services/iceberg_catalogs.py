"""Catalogs of PyIceberg for tests: REST, Glue of moto, and SQL in a SQLite file, each configured as `NAME`."""

import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config
from tests.services.aws_server import AwsServer
from tests.services.iceberg_rest import RestCatalogServer, served

from penstock.app.paths import QUARANTINE_SUFFIX
from penstock.sinks.catalogs.name import CatalogName

NAME = "lake"
NAMESPACE = "web"
KINDS = ("rest", "glue", "sql")
_PREFIX = f"PYICEBERG_CATALOG__{NAME.upper()}__"


def name_of(root: Path) -> CatalogName:
    """Return a name for the table in a folder, unique among the folders of a test."""
    rows = root.with_name(root.name.removesuffix(QUARANTINE_SUFFIX))
    name = CatalogName(scheme=NAME, parts=(NAMESPACE, f"t{hashlib.sha256(bytes(rows)).hexdigest()[:12]}"))
    return name if rows == root else name.suffixed(QUARANTINE_SUFFIX)


def client() -> Catalog:
    """Open the catalog with PyIceberg alone."""
    found = Config().get_catalog_config(NAME)
    assert found is not None
    return load_catalog(NAME, **found)  # type: ignore[arg-type]  # the file's values are texts


def configure(kind: str, request: pytest.FixtureRequest) -> RestCatalogServer | None:
    """Describe a catalog to PyIceberg until the test ends; return the server of a REST catalog."""
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("catalog")
    patch.setenv("PYICEBERG_HOME", str(folder))  # no other configuration
    if kind == "rest":
        state = RestCatalogServer(folder)
        stack = ExitStack()
        request.addfinalizer(stack.close)
        patch.setenv(f"{_PREFIX}URI", stack.enter_context(served(state)))
        return state
    if kind == "sql":
        patch.setenv(f"{_PREFIX}URI", f"sqlite:///{folder / 'catalog.db'}")
        return None
    moto: AwsServer = request.getfixturevalue("moto")
    settings = {
        "TYPE": "glue",
        "GLUE__ENDPOINT": moto.url,
        "GLUE__REGION": "us-east-1",
        "GLUE__ACCESS_KEY_ID": "test",
        "GLUE__SECRET_ACCESS_KEY": "test",
    }
    for key, value in settings.items():
        patch.setenv(f"{_PREFIX}{key}", value)
    return None
