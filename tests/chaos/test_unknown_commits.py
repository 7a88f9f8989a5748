"""COMMITs without an answer, by the hundred: each must be resolved correctly, whether it took effect or not.

The fate of every COMMIT is drawn from a seed.
"""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.chaos.ledger_story import PIPELINE, Story
from tests.services.sql_proxy import Fate, all_pass, at_random_commits, at_random_requests, at_request

from penstock.errors import TemporaryError

SEED = 20260102
REQUESTS_OF_A_CHECK = 8  # more than it makes, the test of the connection included
FATES = (*[Fate.PASS] * 6, Fate.SWALLOW, Fate.LATE, Fate.CUT, Fate.CUT)
TOOK_EFFECT = {Fate.SWALLOW, Fate.LATE}


@pytest.fixture(params=["mariadb_url", "postgresql_url"], ids=["mariadb", "postgresql"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    made = Story(request.getfixturevalue(request.param), SEED)
    yield made
    made.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("faults", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_every_unknown_commit_is_resolved_correctly(story: Story, faults: int) -> None:
    began_at = time.monotonic()
    story.until(faults, at_random_commits(story.chance, FATES))
    fates = Counter(fate for _, fate in story.proxy.faults)
    took_effect = sum(fates[fate] for fate in TOOK_EFFECT)
    print(  # noqa: T201 # the figures, shown with -s
        f"{len(story.proxy.faults)} of {story.proxy.commits} commits got no answer: {took_effect} took effect "
        f"({fates[Fate.LATE]} of them late), {fates[Fate.CUT]} did not; in {sum(story.calls.values())} calls "
        f"{dict(story.calls)}, of which {sum(story.without_answer.values())} ended unknown "
        f"{dict(story.without_answer)}; {time.monotonic() - began_at:.1f} s"
    )
    assert set(fates) == {Fate.SWALLOW, Fate.CUT, Fate.LATE}
    assert "claim" in story.without_answer, "no claim ended without an answer"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("faults", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_connection_lost_at_any_request_leaves_the_ledger_consistent(story: Story, faults: int) -> None:
    """The connection ends before a request or before its answer: on connecting, reading, changing or committing."""
    story.until(faults, at_random_requests(story.chance, 0.05, [Fate.CUT, Fate.SWALLOW]))
    asked = Counter(request.sql.split(maxsplit=1)[0] for request, _ in story.proxy.faults)
    print(f"{len(story.proxy.faults)} of {story.proxy.requests} requests: {dict(asked)}")  # noqa: T201 # as above
    assert len(asked) >= 5, "only a few kinds of requests were hit"


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.SWALLOW], ids=lambda fate: fate.name.lower())
def test_a_check_whose_connection_breaks_can_be_repeated(story: Story, fate: Fate) -> None:
    """Break the connection at each request of a check: no request fails otherwise, and the next check works."""
    ids = set(story.claim().claimed)
    broken = 0
    for number in range(1, REQUESTS_OF_A_CHECK + 1):
        story.proxy.follow(at_request(story.proxy.requests + number, fate))
        try:
            assert story.ledger.states(PIPELINE, ids).keys() == ids
        except TemporaryError:
            broken += 1
        story.proxy.follow(all_pass)
        assert story.ledger.states(PIPELINE, ids).keys() == ids
    assert broken, "no check was hit"
