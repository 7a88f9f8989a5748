"""The results of replays and purges as sentences, which pages translate."""

from collections.abc import Callable, Sequence
from functools import partial

from penstock.dead_letters.canary import CanaryResult
from penstock.errors import PenstockError
from penstock.operations.dead_letters.actions import PurgeReport, ReplayReport
from penstock.operations.status.sentences import Sentence, counted_sentence, sentence

QUEUES_SHOWN = 20


def replay_sentences(
    report: ReplayReport, *, planned: int, shown: Callable[[str], str], error: PenstockError | None = None
) -> Sequence[Sentence]:
    """Return the result of a replay of the planned number of messages.

    ``shown`` takes the secrets out of a text; ``error``: why the replay failed.
    """
    ended = error is None and report.outcome == "done"
    found = report.sent + report.sent_before + report.refused
    return [
        *([] if error is None else [sentence("{reason}", reason=shown(str(error)))]),
        *_sent(report),
        *_left(report, shown),
        *map(partial(_canary, shown=shown), report.canary_results),
        *(_difference(planned, found) if ended else _untouched(planned - found)),
    ]


def purge_sentences(report: PurgeReport, *, planned: int, stopped: bool) -> Sequence[Sentence]:
    """Return the result of a purge of the planned number of messages."""
    deleted = counted_sentence(
        report.dead_letters, "{count} dead letter was deleted.", "{count} dead letters were deleted."
    )
    rest = _untouched(planned - report.dead_letters) if stopped else _difference(planned, report.dead_letters)
    return [deleted, *rest]


def _sent(report: ReplayReport) -> list[Sentence]:
    sentences = [
        counted_sentence(report.sent, "{count} dead letter was sent back.", "{count} dead letters were sent back.")
    ]
    for queue, count in list(report.by_queue.items())[:QUEUES_SHOWN]:
        sentences.append(sentence("To {queue}: {count}.", queue=queue, count=count))
    if report.sent_before:
        sentences.append(
            counted_sentence(
                report.sent_before,
                "{count} had been sent before, by a replay that was cut short: only its dead letter was deleted.",
                "{count} had been sent before, by a replay that was cut short: only their dead letters were deleted.",
            )
        )
    return sentences


def _left(report: ReplayReport, shown: Callable[[str], str]) -> list[Sentence]:
    sentences = []
    if report.without_origin:
        sentences.append(
            counted_sentence(
                report.without_origin,
                "{count} was left: its queue of origin is unknown or does not exist. Plan with a destination.",
                "{count} were left: their queue of origin is unknown or does not exist. Plan with a destination.",
            )
        )
    if report.refused:
        sentences.append(
            counted_sentence(
                report.refused,
                "{count} was left: the queue refuses it: {reason}",
                "{count} were left: the queues refuse them: {reason}",
                reason=shown(report.refusal or ""),
            )
        )
    return sentences


def _canary(result: CanaryResult, *, shown: Callable[[str], str]) -> Sentence:
    if result.status == "settled":
        return sentence("A canary was processed.")
    if result.status == "died":
        return sentence("A canary failed again, so the rest was not sent: {detail}", detail=shown(result.text))
    if result.status == "unknown":
        return sentence(
            "A canary was not processed in time, so the rest was not sent: {detail}", detail=shown(result.text)
        )
    return sentence("A canary was sent, and not watched.")


def _difference(planned: int, found: int) -> list[Sentence]:
    if planned == found:
        return []
    text = "The plan counted {planned}, and {found} were found: others were added or removed since."
    return [sentence(text, planned=planned, found=found)]


def _untouched(count: int) -> list[Sentence]:
    if count <= 0:
        return []
    return [
        counted_sentence(
            count,
            "{count} of the planned dead letters was left untouched.",
            "{count} of the planned dead letters were left untouched.",
        )
    ]
