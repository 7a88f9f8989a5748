"""A publisher is killed after it recorded that batches have no bad lines. The next one skips no bad line."""

import pytest
from tests.chaos import short_intervals
from tests.chaos.oracle import check_done, check_meanwhile, truth
from tests.chaos.runs import FORMATS, KILLED, Case

from penstock.messaging.steps import Step

GOOD, MORE, BAD = range(1, 5), range(6, 10), range(10, 12)  # object 10 has a bad line


@pytest.mark.parametrize("scheme", FORMATS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_kill_after_the_record_of_batches_without_bad_lines_loses_none(case: Case, is_first: bool) -> None:
    case.module = short_intervals.__name__
    case.add_objects(GOOD)
    if not is_first:
        case.ingest()
        case.add_objects(MORE)
    case.ingest(code=KILLED, kill_at=Step.NO_BAD_LINES_RECORDED.value)
    check_meanwhile(truth(case.source), case.table)
    case.add_objects(BAD)
    case.ingest()
    check_done(truth(case.source), case.table)
    assert truth(case.source).bad
