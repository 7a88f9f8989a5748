"""A task reports missing permissions as such, not as any fault of the table: the exit code tells them apart."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest

from penstock.errors import TableDenied
from penstock.storage.local import LocalFiles

pytest.importorskip("pyspark")


class _Denied(LocalFiles):
    def open_output(self, path: str, *, durable: bool = True) -> NoReturn:
        raise TableDenied(f"{path} cannot be used: no credentials.")


def test_missing_permissions_keep_their_exit_code(tmp_path: Path) -> None:
    from penstock.pipeline.spark.arrow_writer import WriteTask, collected

    rows = pa.record_batch({"id": pa.array([1])})
    task = WriteTask.of(rows.schema, files=_Denied(tmp_path), directory="r0")

    class _Row(dict[str, Any]):
        __getattr__ = dict.__getitem__

    reported = [_Row(row) for batch in task.results([rows]) for row in batch.to_pylist()]
    with pytest.raises(TableDenied):
        collected(cast(Any, SimpleNamespace(collect=lambda: reported)))
