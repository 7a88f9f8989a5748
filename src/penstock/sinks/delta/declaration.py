"""The declaration of a Delta table. Imports no deltalake."""

from penstock.messaging.declarations import checks_class_options
from penstock.sinks.declaration import SinkDeclaration
from penstock.sinks.registry import DEFAULT_SCHEME


@checks_class_options("DeltaSink")
class DeltaSink(SinkDeclaration):
    """A Delta table in a folder or at s3://BUCKET/PREFIX, created by the first batch.

    Lines that cannot be read go to ``<table>_quarantine``.

    Args:
        table: The table's folder or prefix.
        partition_by: The partition columns.
        order_by: The columns by which the compaction job orders rows; several: in Z-order.
    """

    __slots__ = ()

    scheme = DEFAULT_SCHEME
