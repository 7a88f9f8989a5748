"""The cleanup of a declared pipeline's source."""

from penstock.app.cleanup import Keep
from penstock.app.cleanup_runner import source_cleanup
from penstock.app.paths import declared_table_paths
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.app.pipelines.sources import declared_source
from penstock.config import Settings
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.pipeline.maintenance.cleanup import SourceCleanup


def pipeline_cleanup(
    declaration: PipelineDeclaration,
    *,
    settings: Settings,
    ledger: Ledger,
    bus: Bus,
    probe: Probe,
    clock: Clock,
    although_missing: bool = False,
) -> SourceCleanup | None:
    """Return the cleanup of a pipeline's source; None if objects are kept.

    ``although_missing``: also objects whose rows may have left the table. Raises `UsageError` as `source_cleanup` does.
    """
    if isinstance(declaration.source.cleanup, Keep):
        return None
    from penstock.app.tables import Tables

    where = declared_table_paths(declaration.name, declaration.sink.address, settings)
    tables = Tables(where, ledger, partition_by=None, bus=bus, probe=probe)
    return source_cleanup(
        declaration.source.cleanup,
        source=declared_source(declaration.source, where),
        pipeline=where.pipeline,
        own=where.own,
        shown_to=tables.shown_to if although_missing else tables.retained_to,
        ledger=ledger,
        bus=bus,
        probe=probe,
        clock=clock,
    )
