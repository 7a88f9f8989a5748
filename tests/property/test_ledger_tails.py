"""Versions that grow, from two workers in any order: the table has the lines that reading whole versions would give.

The versions of `test_ledger_versions` get contents here, of which one is the beginning of another. A run reads what was
appended if the ledger knows the beginning. The table is computed from the ledger's batches, as a publish does it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_ledger_versions import (
    KEYS,
    STEP,
    VERSION_OF,
    Work,
    World,
    address,
    check,
)

from penstock.ledger.records import (
    BatchOutcome,
    Beginning,
    Committed,
    KnownBeginning,
    ObjectResult,
    OnChange,
    replaced_objects,
)

CONTENTS = {1: "ab", 2: "abc", 3: "abcde", 4: "abx", 5: "abcd"}
ENDS_OPEN = 5  # this version ends within a line, so that none can be appended to it
GROWN_STEP = st.one_of(
    STEP,
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from(sorted(CONTENTS))),
    st.tuples(st.just("grow"), st.sampled_from(KEYS), st.just(0)),
)


@dataclass
class GrowingWorld(World):
    on_change: OnChange = OnChange.TAIL
    shown: dict[str, str] = field(default_factory=dict)  # the lines in the table by key, after the last batch
    kinds: Counter[str] = field(default_factory=Counter)

    def grow(self, key: str, _: object) -> None:
        """Put a version that begins with the present one, if there is one, and process everything."""
        present = self.store.get(key)
        longer = [n for n, text in CONTENTS.items() if present and text.startswith(CONTENTS[present]) and n != present]
        if longer:
            self.put(key, longer[0])
            for name in ("claim", "read", "commit"):
                getattr(self, name)(1, 4)

    def result(self, work: Work, object_id: bytes) -> ObjectResult:
        _, number = VERSION_OF[object_id]
        text = CONTENTS[number]
        known = self.ledger.beginnings(self.pipeline, work.claim.attempt_id).get(object_id)
        grew = known is not None and _is_beginning(known, text)
        rows = len(text) - (known.beginning.size_bytes if known is not None and grew else 0)
        beginning = Beginning(size_bytes=len(text), digest=text, reading="r")
        return ObjectResult(
            object_id=object_id,
            rows=rows,
            lines_quarantined=0,
            beginning=None if number == ENDS_OPEN else beginning,
            appended_to=known.attempt_id if known is not None and grew else None,
        )

    def record(self, outcome: BatchOutcome, done: Committed) -> None:
        """Apply a batch to the table, and compare the counts of its commit."""
        batch = self.ledger.batch(self.pipeline, done.seq)
        assert batch is not None
        replaced = [key for key in KEYS if address(key) in replaced_objects(batch.record.replaces)]
        assert done.replaced_rows == sum(len(self.shown.get(key, "")) for key in replaced)
        assert done.replaced_objects == len(replaced)
        for key in replaced:
            self.shown[key] = ""
        for one in outcome.processed:
            key, number = VERSION_OF[one.object_id]
            text = CONTENTS[number]
            self.shown[key] = self.shown.get(key, "") + text[len(text) - one.rows :]
            self.kinds["grown" if one.appended_to is not None else "whole"] += 1
        grown = [one for one in outcome.processed if one.appended_to is not None]
        assert (done.grown_objects, done.appended_rows) == (len(grown), sum(one.rows for one in grown))

    def table(self) -> dict[str, list[int]]:
        """Return the version whose lines the table shows, by key; -1 if they are no version's."""
        numbers = {text: number for number, text in CONTENTS.items()}
        return {key: [numbers.get(text, -1)] if (text := self.shown.get(key, "")) else [] for key in KEYS}


def _is_beginning(known: KnownBeginning, text: str) -> bool:
    size = known.beginning.size_bytes
    return size < len(text) and text[:size] == known.beginning.digest


@settings(max_examples=40)
@given(st.lists(GROWN_STEP, max_size=40))
def test_the_table_has_the_lines_of_whole_versions(steps: Sequence[tuple[str, object, object]]) -> None:
    check(steps, GrowingWorld)


@pytest.mark.slow
@settings(max_examples=2_000)
@given(st.lists(GROWN_STEP, min_size=20, max_size=80))
def test_the_table_has_the_lines_of_whole_versions_after_many_steps(
    steps: Sequence[tuple[str, object, object]],
) -> None:
    check(steps, GrowingWorld)


def test_only_appended_lines_are_committed() -> None:
    steps = [("put", "a", 1), ("claim", 0, 4), ("read", 0, 0), ("commit", 0, 0), ("grow", "a", 0), ("archive", 0, 0)]
    world = check([*steps, ("grow", "a", 0)], GrowingWorld)
    assert isinstance(world, GrowingWorld)
    assert world.kinds == {"whole": 1, "grown": 2}
