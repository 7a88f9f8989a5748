"""Tables whose settings forbid to take rows out: publishing halts before it writes a file, until they are gone."""

import pytest
from deltalake import DeltaTable
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.conformance.publishing.test_replaced_rows import Lake

from penstock.errors import PublishHalted


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_committed_batch_that_replaces_rows_waits_until_the_setting_is_gone(
    delta_maker: BatchMaker, setting: str
) -> None:
    lake, root = Lake(maker=delta_maker), delta_maker.root
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    DeltaTable(str(root)).alter.set_table_properties({setting: "true"})
    lake.batch({"s3://b/c": [3]})
    lake.publish()
    lake.check()
    before = sorted(root.rglob("*"))
    lake.batch({"s3://b/a": [10]}, replaces=["s3://b/a"])
    written = len(list((root / "data").rglob("*")))
    for _ in range(2):
        with pytest.raises(PublishHalted, match=f"A committed batch replaces rows.*{setting}=true.*UNSET"):
            lake.publish()
    assert [path for path in sorted(root.rglob("*")) if "data" not in path.parts] == [
        path for path in before if "data" not in path.parts
    ]
    assert len(list((root / "data").rglob("*"))) == written
    DeltaTable(str(root)).alter.set_table_properties({setting: "false"})
    lake.publish()
    lake.check()
