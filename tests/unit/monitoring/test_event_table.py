"""Every event is logged, or declared as not logged, under names in one style."""

import re
from collections import defaultdict

from tests.unit.monitoring.event_strategies import event_types

from penstock import events
from penstock.monitoring.logs.plans import COUNTED_ONLY, NOT_LOGGED, ROWS
from penstock.monitoring.logs.rows import rows_of

ALL_ROWS = [row for entry in ROWS.values() for row in rows_of(entry)]

DOCUMENTED_NAMES = {
    "worker": "started draining drained interrupted forced",
    "message": "received started finished failed retrying skipped invalid acked released dead_lettered",
    "object": "started finished failed retrying interrupted skipped deleted superseded",
    "batch": "claimed written committed published",
    "lease": "extended lost",
    "heartbeat": "failed",
    "lines": "quarantined",
}


def test_every_event_has_a_row_or_is_declared_as_not_logged() -> None:
    kinds = set(event_types())
    assert len(kinds) > 30
    assert kinds == ROWS.keys() | NOT_LOGGED | COUNTED_ONLY
    assert not ROWS.keys() & (NOT_LOGGED | COUNTED_ONLY)


def test_events_that_are_not_logged_are_base_classes() -> None:
    assert all(kind.__subclasses__() for kind in NOT_LOGGED)


def test_the_documented_names_exist() -> None:
    documented = {f"{subject}.{verb}" for subject, verbs in DOCUMENTED_NAMES.items() for verb in verbs.split()}
    assert documented - {row.name for row in ALL_ROWS} == set()


def test_names_messages_and_fields_have_one_style() -> None:
    for row in ALL_ROWS:
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", row.name), row.name
        assert re.fullmatch(r"[A-Z].*\.", row.msg), row.msg
        assert all(re.fullmatch(r"[a-z_]+(\.[a-z]+)?", name) for name in row.fields), row.name


def test_a_name_has_the_same_fields_on_all_its_lines() -> None:
    fields = defaultdict(set)
    for row in ALL_ROWS:
        fields[row.name].add((tuple(row.fields), row.each))
    assert [name for name, kinds in fields.items() if len(kinds) > 1] == []


def test_no_two_events_share_a_name() -> None:
    owners = defaultdict(set)
    for kind, entry in ROWS.items():
        for row in rows_of(entry):
            owners[row.name].add(kind)
    assert [name for name, kinds in owners.items() if len(kinds) > 1] == []


def test_only_routine_events_are_logged_at_debug_level() -> None:
    debug = {kind for kind, entry in ROWS.items() if rows_of(entry)[0].level == "debug"}
    assert debug == {
        events.DeliveryAcked,
        events.LeasesExtended,
        events.BatchProgressed,
        events.MessageStarted,
        events.MessagesReceived,
        events.ReconcileProgressed,
        events.ReceiveEmpty,
    }
