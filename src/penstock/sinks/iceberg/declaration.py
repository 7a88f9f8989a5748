"""The declaration of an Iceberg table. Imports no PyIceberg."""

from penstock.messaging.declarations import checks_class_options
from penstock.sinks.declaration import SinkDeclaration


@checks_class_options("IcebergSink")
class IcebergSink(SinkDeclaration):
    """An Iceberg table in a folder or at s3://BUCKET/PREFIX, created by the first batch.

    Lines that cannot be read go to ``<table>_quarantine``.

    Args:
        table: The table's folder or prefix.
        partition_by: The partition fields: columns, or transforms of columns, such as day(ts), bucket(16, user) and
            truncate(4, path).
    """

    __slots__ = ()

    scheme = "iceberg"
