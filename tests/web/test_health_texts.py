"""Every sentence that the health model can produce has its Japanese."""

from collections.abc import Mapping

import pytest
from tests.web.figures import NO_OBJECTS, pipeline, queue, status

from penstock.ledger.records import ObjectState
from penstock.operations.status.model import ForeignCommitStatus, LaggingQueue, ProblemKind, Status
from penstock.operations.status.sentences import Names, sentence
from penstock.web.rendering import sentence_text
from penstock.web.texts import texts_in

FOREIGN = ForeignCommitStatus(
    table="t", version=3, operation="WRITE", engine="e", committed_at=None, replaced_from=1, replaced_to=2
)
STATES: Mapping[str, Status] = {
    "one message": status(messages_visible=1, queues=[queue(visible=1)]),
    "messages": status(messages_visible=2, queues=[queue(visible=2)]),
    "one message of an unknown queue": status(messages_visible=1),
    "messages of an unknown queue": status(messages_visible=2),
    "objects without workers": status(
        objects={**NO_OBJECTS, ObjectState.UNPROCESSED: 2},
        pipelines=[pipeline(objects={ObjectState.UNPROCESSED: 2}, queue="a")],
    ),
    "objects without workers or a queue": status(objects={**NO_OBJECTS, ObjectState.UNPROCESSED: 2}),
    "one unserved": status(workers=["w"], messages_unserved=1, queues_unserved=["a"]),
    "unserved": status(workers=["w"], messages_unserved=4, queues_unserved=["a", "b", "c", "d", "e"]),
    "queues": status(workers=["w"], queues=[queue(breaker="e"), queue(unserved="e"), queue(unread="e")]),
    "lagging": status(lagging=[LaggingQueue(queue="q", age_seconds=900, after_seconds=300, no_consumer=False)]),
    "no consumer": status(lagging=[LaggingQueue(queue="q", age_seconds=900, after_seconds=300, no_consumer=True)]),
    "failed": status(objects={**NO_OBJECTS, ObjectState.DEAD: 2}),
    "dead letters": status(dead_letters=3),
    "final dead letters": status(dead_letters=3, dead_letters_set_aside=1),
    "waiting dead letters": status(dead_letters=3, dead_letters_replayed=3),
    "bad lines in one": status(pipelines=[pipeline(warned_objects=1, warned_lines=9)]),
    "bad lines": status(pipelines=[pipeline(warned_objects=2, warned_lines=9)]),
    "missing": status(pipelines=[pipeline(objects_missing=2, shortfalls=["rows left"])], disagreements=["versions"]),
    "overdue": status(pipelines=[pipeline(objects_overdue=2)]),
    "overdue since": status(pipelines=[pipeline(objects_overdue=2, oldest_unprocessed_age_seconds=90_000.0)]),
    "unpublished": status(batches_unpublished=2),
    "elsewhere": status(messages_visible=2, workers_elsewhere=True),
    "replaced commit": status(pipelines=[pipeline(foreign_commits=[FOREIGN])]),
}


@pytest.mark.parametrize("name", STATES)
def test_each_sentence_has_its_japanese(name: str) -> None:
    found = STATES[name]
    sentences = [*(problem.sentence for problem in found.problems), *found.warnings, *found.elsewhere]
    assert sentences
    for one in sentences:
        assert one.form in texts_in("ja").translations
        assert "{" not in sentence_text(texts_in("ja"), one)
        assert sentence_text(texts_in("en"), one).unescape() == one.text


def test_each_kind_has_its_japanese() -> None:
    assert {kind.value for kind in ProblemKind} <= texts_in("ja").translations.keys()


def test_names_are_escaped_in_every_language() -> None:
    one = sentence(
        "{count} messages wait in {queues}, and no worker runs", count=9, queues=Names(["<b>", "a", "b", "c"])
    )
    assert sentence_text(texts_in("ja"), one).startswith("&lt;b&gt;, a ほか 2 キュー で 9 件")
