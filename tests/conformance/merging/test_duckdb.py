"""A merged table has the rows that a window function of DuckDB finds among all rows that were ever sent.

Rows arrive in random order, in ten batches, with duplicates, ties and deletes; a compaction and a fold of the deletes
run in between. DuckDB shares no code with the product.
"""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.merging.merged_lake import MergedLake
from tests.conformance.publishing.batch_maker import BatchMaker

from penstock.pipeline.merging.declaration import Merge

BATCHES = 10
FILES_EACH = 3
DELETED = 0.15
REPEATED = 0.1
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
        ("version", pa.int32()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("_object", pa.string()),
        ("_offset", pa.int64()),
    ]
)
MERGE = Merge(key=["id", "region"], order_by=["updated_at", "version"], delete_when="op = 'D'", drop="op")

# Null is the oldest value; a delete is later than a row with the same order; the other columns decide, by name.
LAST = """
select * exclude (place, op) from (
    select *, row_number() over (
        partition by id, region
        order by updated_at desc nulls last, version desc nulls last, op = 'D' desc,
            amount desc nulls last, name desc nulls last, _object desc, _offset desc
    ) as place from sent
) where place = 1 and op <> 'D'
"""


def events(rows: int, seed: int) -> pa.Table:
    """Return rows of some keys in random order, with an operation. A tenth of them are there twice."""
    chance = np.random.default_rng(seed)
    fresh = rows - int(rows * REPEATED)
    ids = chance.integers(0, max(1, rows // 5), fresh)
    times = chance.integers(0, 50, fresh) * 1_000_000
    table = pa.table(
        [
            ids,
            pa.array(np.array(["eu", "us", "é:x", ""])[chance.integers(0, 4, fresh)]),
            pa.array(times, pa.timestamp("us", tz="UTC"), mask=chance.random(fresh) < 0.02),
            pa.array(chance.integers(0, 3, fresh), pa.int32(), mask=chance.random(fresh) < 0.1),
            pa.array(chance.choice([1.5, 2.5, np.nan, np.inf, -1.0], fresh), mask=chance.random(fresh) < 0.1),
            pa.array([f"n{number}" for number in chance.integers(0, 4, fresh)], mask=chance.random(fresh) < 0.1),
            pa.array([f"file:///landing/{number}.jsonl" for number in chance.integers(0, 9, fresh)]),
            pa.array(np.arange(fresh)),
        ],
        schema=SCHEMA,
    )
    deletes = pa.array(np.where(chance.random(fresh) < DELETED, "D", "U"))
    table = table.append_column("op", deletes)
    repeated = table.take(pa.array(chance.integers(0, fresh, rows - fresh)))
    both = pa.concat_tables([table, repeated])
    return both.take(pa.array(chance.permutation(rows)))


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_the_table_has_the_last_row_of_each_key(maker: BatchMaker, rows: int) -> None:
    sent = events(rows, seed=rows)
    lake = MergedLake(maker=maker, merge=MERGE, schema=SCHEMA)
    size = rows // BATCHES
    for number in range(BATCHES):
        part = sent.slice(number * size, size)
        is_delete = pa.compute.equal(part["op"], "D")
        lake.batch(part.filter(pa.compute.invert(is_delete)).drop(["op"]), part.filter(is_delete), files=FILES_EACH)
        if number % 3:  # so that a publish has one batch, or two
            lake.publish()
        if number == BATCHES // 2:
            lake.compact()
            assert lake.fold_deletes() > 1
    lake.publish()

    connection = duckdb.connect()
    connection.register("sent", sent)
    connection.execute(f"create table expected as {LAST}")
    connection.execute("create table shown as select * from read_parquet(?, union_by_name = true)", [lake.files()])
    columns = ", ".join(SCHEMA.names)

    def count(query: str) -> int:
        row = connection.sql(query).fetchone()
        assert row is not None
        return int(row[0])

    shown, expected = count("select count(*) from shown"), count("select count(*) from expected")
    assert shown == expected
    assert 0 < expected < rows // 2
    for one, other in (("shown", "expected"), ("expected", "shown")):
        differing = f"select {columns} from {one} except all select {columns} from {other}"
        assert connection.sql(f"{differing} limit 5").fetchall() == []
    deleted = count("select count(distinct (id, region)) from sent") - expected
    assert deleted > rows // 1_000  # otherwise the deletes decide nothing
