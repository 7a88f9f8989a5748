"""`penstock ledger archive`: everything in a scope that may leave the ledger, now, and an end."""

from collections.abc import Mapping
from contextlib import closing

from penstock.app.archive import archive, cleanups_of, stores
from penstock.app.kill import killing_probe
from penstock.app.object_service import ObjectService
from penstock.app.places import Places
from penstock.app.scope import Scope, is_there, scope_ledger
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.messaging.clock import SystemClock
from penstock.pipeline.archive import Archived, check_retention


def archive_scope(scope: Scope, *, app: str | None, older_than_seconds: float, dry_run: bool) -> Mapping[str, Archived]:
    """Archive each pipeline that is meant, and object handlers; answers by pipeline.

    Raises `UsageError` for an age below the least one, and where the folders of an app's tables are not known.
    """
    check_retention(older_than_seconds)
    settings = load_settings()
    tableless = [name for name in sorted(scope.tableless) if scope.pipeline in (None, name)]
    tables = {} if tableless and scope.pipeline in tableless else _tables(scope, tableless)
    if not is_there(scope.settings.ledger):
        raise UsageError(f"There is no ledger {scope.name} yet: the first worker, or ingest, makes it.")
    cleans_up = dict.fromkeys(tableless, False)
    if app is not None:
        from penstock.app.loading import load_app

        loaded = load_app(app)
        objects = [service for service in loaded.services if isinstance(service, ObjectService)]
        cleans_up |= cleanups_of([*loaded.pipelines, *objects])
    probe, clock = killing_probe(settings.kill_at), SystemClock()
    where_settings = settings.model_copy(update={"state": scope.settings.state})
    with closing(scope_ledger(scope, probe=probe)) as ledger:
        return {
            store.pipeline: archive(
                store, ledger, older_than_seconds=older_than_seconds, probe=probe, clock=clock, dry_run=dry_run
            )
            for store in stores(tables, tableless, ledger, where_settings, cleans_up=cleans_up)
        }


def _tables(scope: Scope, tableless: list[str]) -> Mapping[str, Places]:
    if tableless and not scope.tables:
        return {}
    return scope.tables_meant
