"""The declaration of a pipeline's table: its address and partition columns. Needs no library of the format."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import ClassVar, Self

from penstock.errors import UsageError
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.partitions import declared
from penstock.sinks.registry import address_in, has_transforms, named_scheme, split_address
from penstock.storage.address import check_address


@dataclass(frozen=True, slots=True)
class SinkDeclaration:
    """A table in a folder or at s3://BUCKET/PREFIX. Users pass the subclass of a table format to `App.pipeline`.

    Args:
        table: The table's folder or prefix.
        partition_by: The partition columns.
        order_by: The columns by which the compaction job orders rows; several: in Z-order.
    """

    scheme: ClassVar[str]  # of the format in `penstock.sinks.registry`

    table: str | PathLike[str]
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    order_by: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        scheme = named_scheme(fspath(self.table))
        if scheme not in (None, self.scheme):
            raise UsageError(
                f"The address {self.table} is that of a table in the format {scheme}, and {type(self).__name__} "
                f"declares one in the format {self.scheme}."
            )
        check_address("table", split_address(fspath(self.table))[1])
        for option in ("partition_by", "order_by"):
            columns = getattr(self, option)
            if isinstance(columns, str):
                raise UsageError(f"{option}={columns!r} is text; write a list of columns: [{columns!r}].")
            if not (isinstance(columns, Iterable) and all(isinstance(name, str) for name in columns)):
                raise UsageError(f"{option}={columns!r} is no list of columns; write their names, as in ['day'].")
            object.__setattr__(self, option, tuple(columns))
        fields = declared(self.partition_by, table=fspath(self.table), has_transforms=has_transforms(self.scheme))
        object.__setattr__(self, "partition_by", fields)
        self._check_columns()

    def _check_columns(self) -> None:
        for name in self.order_by:
            if name in self.partition_by:
                raise UsageError(f"The table {self.table} is partitioned by {name}; order_by needs other columns.")
            if self.order_by.count(name) > 1:
                raise UsageError(f"The table {self.table} is ordered by {name} more than once.")

    def for_test(self, table: str) -> Self:
        """Return the same declaration for another table, which is registered nowhere."""
        return replace(self, table=table)

    @property
    def catalog_entry(self) -> CatalogName | None:
        """The name under which a data catalog is to list the table; None: it is registered nowhere."""
        return None

    @property
    def metadata_catalog(self) -> CatalogName | None:
        """The name of the table in the catalog that names its newest metadata; None: its folder does."""
        return None

    @property
    def address(self) -> str:
        """The table's address with the scheme of its format."""
        return address_in(self.scheme, split_address(fspath(self.table))[1])
