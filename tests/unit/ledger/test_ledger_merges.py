"""The refusal of another merge than the one a table has."""

from dataclasses import replace

import pytest

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.merges import check_merge
from penstock.pipeline.merging.declaration import Merge

MERGE = Merge(key=["id", "day"], order_by="at", delete_when="op = 'D'", drop="op")


def test_the_refusal_names_the_options_to_paste() -> None:
    row = replace(Ledger.open("sqlite://").ensure_pipeline("orders"), merge=MERGE.text(), next_seq=2)
    check_merge(row, MERGE.text(), table="lake/orders", has="this ingest has")
    with pytest.raises(UsageError) as refused:
        check_merge(row, Merge(key="id", order_by="at").text(), table="lake/orders", has="this ingest has")
    assert str(refused.value) == (
        "The rows of lake/orders are merged by key as in --merge-key id,day --order-by at --delete-when \"op = 'D'\" "
        "--merge-drop op, and this ingest has the merge --merge-key id --order-by at: give the same one, or load into "
        "a new table."
    )
