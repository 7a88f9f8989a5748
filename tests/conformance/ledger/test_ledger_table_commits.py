"""The memory of a table's last commits."""

from dataclasses import replace

from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness

from penstock.ledger.table_commits import SeenCommit

TABLE = "s3://lake/clicks"
OURS = SeenCommit(version=3, tag="a", size_bytes=700, after_seq=2, seq=4, engine=None, operation="WRITE")
FOREIGN = SeenCommit(
    version=4,
    tag="b",
    size_bytes=1 << 40,
    after_seq=4,
    seq=4,
    engine="Spark \0 ü",
    operation="OPTIMIZE",
    committed_at=1_720_000_000.5,
    lost_from=3,
    lost_to=4,
)


def test_commits_are_remembered_per_table_and_pipeline_in_order(harness: LedgerHarness) -> None:
    commits = harness.ledger.table_commits
    commits.remember(PIPELINE, TABLE, [FOREIGN, OURS], first=0, last=4)
    assert commits.seen(PIPELINE, TABLE) == [OURS, replace(FOREIGN, engine="Spark \\x00 ü")]
    assert commits.seen(PIPELINE, f"{TABLE}_quarantine") == []
    assert commits.seen("another", TABLE) == []


def test_a_commit_is_replaced_and_versions_outside_the_window_are_forgotten(harness: LedgerHarness) -> None:
    commits = harness.ledger.table_commits
    commits.remember(PIPELINE, TABLE, [replace(OURS, version=version) for version in range(6)], first=0, last=5)
    commits.remember(PIPELINE, "another", [OURS], first=0, last=3)
    changed = replace(OURS, version=4, tag="other")
    commits.remember(PIPELINE, TABLE, [changed], first=2, last=4)
    assert [(one.version, one.tag) for one in commits.seen(PIPELINE, TABLE)] == [(2, "a"), (3, "a"), (4, "other")]
    assert commits.seen(PIPELINE, "another") == [OURS]
    commits.remember(PIPELINE, TABLE, [], first=9, last=9)
    assert commits.seen(PIPELINE, TABLE) == []
