"""Register a pipeline's two tables in the data catalog that its declaration or `penstock ingest --register` names."""

from collections.abc import Callable, Mapping

from penstock.app.paths import QUARANTINE_SUFFIX
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Bus
from penstock.messaging.clock import Clock
from penstock.sinks.catalogs.catalog import Catalog
from penstock.sinks.catalogs.glue import GlueCatalog
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.catalogs.registrar import Registrar
from penstock.sinks.catalogs.unity import UnityCatalog
from penstock.storage.aws import require_aws


class TableRegistration:
    """Keeps the catalog's entries of a pipeline's tables, for one process. Any thread may call it."""

    def __init__(
        self,
        tables: Tables,
        entry: CatalogName | None,
        settings: Settings,
        *,
        pipeline: str,
        bus: Bus,
        clock: Clock,
    ) -> None:
        """``entry`` None: the tables are registered nowhere. Raises `ConfigurationError` if the catalog needs more."""
        self._tables = tables
        self._registrars: tuple[Registrar, ...] = ()
        if entry is not None:
            catalog = _open(entry, settings)
            names = (entry, entry.suffixed(QUARANTINE_SUFFIX))
            self._registrars = tuple(
                Registrar(catalog, name, sink, pipeline=pipeline, bus=bus, clock=clock)
                for sink, name in zip((tables.rows, tables.quarantine), names, strict=True)
            )

    @property
    def jobs(self) -> Mapping[str, Callable[[], object]]:
        """`register` as a background job, by name; empty if the tables are registered nowhere."""
        return {"catalog": self.register} if self._registrars else {}

    def register(self, *, at_once: bool = False) -> tuple[str, ...]:
        """Bring the entries up to date with the versions that this process has published; return reasons of failures.

        ``at_once``: do not wait after an earlier failure.
        """
        found = zip(self._registrars, self._tables.published_versions, strict=False)
        problems = (registrar.register(version, at_once=at_once) for registrar, version in found)
        return tuple(problem for problem in problems if problem is not None)


def _open(entry: CatalogName, settings: Settings) -> Catalog:
    """Return the catalog of an entry, without any access yet."""
    if entry.scheme == "glue":
        require_aws()
        return GlueCatalog(settings.aws)
    if settings.tables_unity_url is None:
        raise ConfigurationError(
            f"The entry {entry} needs the setting tables.unity_url, the address of the Unity Catalog."
        )
    return UnityCatalog(settings.tables_unity_url, settings.tables_unity_token)
