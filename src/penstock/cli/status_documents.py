"""The status as JSON documents."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.app.scope import Scope
from penstock.cli.queues import queue_document
from penstock.ledger.records import ObjectState

if TYPE_CHECKING:
    from penstock.operations.status.model import Status


def document_of_all(scopes: Sequence[Scope], found: "Sequence[Status]") -> dict[str, Any]:
    """Return the problems of all scopes, and the document of each under ``scopes``."""
    documents = [{"scope": scope.title, **document_of(one)} for scope, one in zip(scopes, found, strict=True)]
    together = ("problem_kinds", "problems", "warnings", "notes")
    return {
        "summary": "; ".join(f"{document['scope']}: {document['summary']}" for document in documents),
        **{name: list(dict.fromkeys(text for document in documents for text in document[name])) for name in together},
        "scopes": documents,
    }


def document_of(found: "Status") -> dict[str, Any]:
    """Return the status of one scope as a document."""
    return {
        "summary": found.summary,
        "problem_kinds": list(found.problem_kinds),
        "problems": list(found.problem_texts),
        "warnings": [warning.text for warning in found.warnings],
        "notes": list(found.notes),
        "table": found.table,
        "table_version": found.table_version,
        "table_format": found.table_format,
        "objects": objects_by_state(found.objects),
        "objects_replaced": found.objects_replaced,
        "batches_committed": found.batches_committed,
        "batches_unpublished": found.batches_unpublished,
        "replaced_objects": found.replaced_objects,
        "replaced_rows": found.replaced_rows,
        "messages": {
            "visible": found.messages_visible,
            "in_flight": found.messages_in_flight,
            "delayed": found.messages_delayed,
            "oldest_visible_age_seconds": found.oldest_visible_message_age_seconds,
        },
        "objects_missing": found.objects_missing,
        "objects_overdue": found.objects_overdue,
        "warned_objects": found.warned_objects,
        "warned_lines": found.warned_lines,
        "dead_letters": found.dead_letters,
        "dead_letters_replaced": found.dead_letters_replaced,
        "dead_letters_set_aside": found.dead_letters_set_aside,
        "dead_letters_replayed": found.dead_letters_replayed,
        "lagging": [dataclasses.asdict(lagging) for lagging in found.lagging],
        "workers": list(found.workers),
        "workers_elsewhere": found.workers_elsewhere,
        "pipelines": [
            dataclasses.asdict(pipeline) | {"objects": objects_by_state(pipeline.objects)}
            for pipeline in found.pipelines
        ],
        "queues": [queue_document(queue) for queue in found.queues],
    }


def objects_by_state(counts: Mapping[ObjectState, int]) -> dict[str, int]:
    """Return a number for every state."""
    return {state.value: counts.get(state, 0) for state in ObjectState}
