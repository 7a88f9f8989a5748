"""Every event is logged, or declared as not logged, under names in one style."""

import re
from collections import defaultdict

from tests.unit.monitoring.made import event_types

from penstock import events
from penstock.monitoring.logs.plans import COUNTED_ONLY, NOT_LOGGED, ROWS
from penstock.monitoring.logs.rows import rows_of

ALL_ROWS = [row for entry in ROWS.values() for row in rows_of(entry)]

PROMISED = {
    "worker": "started draining drained interrupted forced",
    "message": "received started finished failed retrying skipped invalid acked released dead_lettered",
    "object": "started finished failed retrying interrupted skipped deleted superseded",
    "batch": "claimed written committed published",
    "lease": "extended lost",
    "heartbeat": "failed",
    "lines": "quarantined",
}


def test_every_event_has_a_row_or_is_said_not_to_be_logged() -> None:
    kinds = set(event_types())
    assert len(kinds) > 30
    assert kinds == ROWS.keys() | NOT_LOGGED | COUNTED_ONLY
    assert not ROWS.keys() & (NOT_LOGGED | COUNTED_ONLY)


def test_what_is_not_logged_is_never_emitted_as_it_has_heirs() -> None:
    assert all(kind.__subclasses__() for kind in NOT_LOGGED)


def test_the_promised_names_are_there() -> None:
    promised = {f"{what}.{came}" for what, all_that_came in PROMISED.items() for came in all_that_came.split()}
    assert promised - {row.name for row in ALL_ROWS} == set()


def test_names_sentences_and_fields_are_in_one_style() -> None:
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


def test_what_goes_well_beside_a_finished_message_is_for_debugging() -> None:
    quiet = {kind for kind, entry in ROWS.items() if rows_of(entry)[0].level == "debug"}
    assert quiet == {
        events.DeliverySettled,
        events.LeasesExtended,
        events.BatchProgressed,
        events.MessageStarted,
        events.MessagesReceived,
        events.ReconcileProgressed,
        events.ReceiveEmpty,
    }
