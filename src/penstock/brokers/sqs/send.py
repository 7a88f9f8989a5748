"""Sending, in order and in calls of at most ten messages and one mebibyte.

A call to a FIFO queue contains no two messages of one group: the second might succeed after the first failed.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence

from penstock.brokers import shared
from penstock.brokers.sqs.calls import ENTRY_TRIES_MAX, BatchCalls, FailedEntry, failures
from penstock.brokers.sqs.client import QueueRef, SqsApi, is_invalid
from penstock.brokers.sqs.envelope import Entry, deduplication_id, sealed, size_bytes
from penstock.brokers.sqs.limits import BATCH_MAX, MESSAGE_BYTES_MAX, check_delay, whole_seconds
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UnknownOutcome
from penstock.messaging.message import Outgoing
from penstock.messaging.wording import worded

SEND = "send_message_batch"
GROUP = "MessageGroupId"  # accepted by SQS for standard queues since 2025, but not by every server


class SqsSender:
    """Send messages. Thread-safe."""

    def __init__(self, api: SqsApi, queues: SqsQueues, batches: BatchCalls) -> None:
        self._api = api
        self._queues = queues
        self._batches = batches
        self._groupless: set[str] = set()  # URLs of standard queues that refuse groups; written by any thread

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send the messages and return their ids.

        Sends none if one can never be accepted; otherwise raises at the first that was not accepted.
        """
        shared.check_queue(queue)
        for message in messages:
            _check(queue, message)
        if not messages:
            return ()
        found = self._queues.find(queue)
        entries = [self._entry(found, message) for message in messages]
        ids: list[str] = []
        for batch in _batched(entries, fifo=found.is_fifo):
            results = self._send_batch(found, batch)
            failed = [result for result in results if isinstance(result, PenstockError)]
            ids += [result for result in results if not isinstance(result, PenstockError)]
            if failed:
                raise _partly(failed[0], taken=len(ids), of=len(entries))
        return ids

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """Return the id of each message, or why it was not accepted.

        A `ConfigurationError` in the result concerns that message. One that concerns the queue or our permissions is
        raised if no message was accepted before it. Otherwise it becomes a `TemporaryError` of each message that was
        not accepted, so that the caller can mark the others as sent.
        """
        found = self._queues.find(queue)
        results: list[str | PenstockError] = []
        entries: dict[int, Entry] = {}  # by position
        for position, message in enumerate(messages):
            try:
                _check(queue, message)
                entries[position] = self._entry(found, message)
            except ConfigurationError as error:
                results.append(error)
            else:
                results.append("")  # until it is tried
        for position, result in zip(entries, self.try_all(found, list(entries.values())), strict=True):
            results[position] = result
        refusal = next((result for result in results if _is_of_queue(result)), None)
        if not isinstance(refusal, PenstockError):
            return results
        if not any(isinstance(result, str) for result in results):
            raise refusal
        return [TemporaryError(str(result)) if _is_of_queue(result) else result for result in results]

    def takes(self, queue: str, message: Outgoing) -> bool:
        """Return True if the queue accepts a message of that size, by the queue's attributes when last read."""
        found = self._queues.find(queue)
        entry = sealed(message.body, message.attributes, message.group, fifo=found.is_fifo)
        return size_bytes(entry) <= min(self._queues.bytes_max(found), MESSAGE_BYTES_MAX)

    def try_all(self, queue: QueueRef, entries: Sequence[Entry]) -> Sequence[str | PenstockError]:
        """Return the id of each entry, or why it was not accepted.

        Entries after a refused one are still sent. After a call that failed as a whole, or that the queue refused,
        nothing more is sent. In a FIFO queue, no message is sent after one of its group that may be sent again, to keep
        the group's order.
        """
        results: list[str | PenstockError] = []
        halted: dict[str, PenstockError] = {}  # by group
        over: PenstockError | None = None
        for batch in _batched(entries, fifo=queue.is_fifo):
            if over is not None:
                results += [over] * len(batch)
                continue
            unsent = [position for position, entry in enumerate(batch) if entry.get(GROUP) not in halted]
            tried, over = self._whole(queue, [batch[position] for position in unsent])
            by_position = dict(zip(unsent, tried, strict=True))
            results += [
                by_position.get(position) or _behind(halted[entry[GROUP]]) for position, entry in enumerate(batch)
            ]
            if queue.is_fifo:
                failed = ((batch[position], result) for position, result in by_position.items())
                halted |= {entry[GROUP]: result for entry, result in failed if isinstance(result, TemporaryError)}
        return results

    def _whole(
        self, queue: QueueRef, batch: Sequence[Entry]
    ) -> tuple[Sequence[str | PenstockError], PenstockError | None]:
        """Send one call. Return the results, and the error because of which nothing more is to be sent, if any."""
        if not batch:
            return (), None
        try:
            return self._batch(queue, batch), None
        except TemporaryError as error:
            return [error] * len(batch), TemporaryError(f"it was not sent, since the call before it failed: {error}")
        except PenstockError as error:
            if _is_of_queue(error):
                return [error] * len(batch), error
            # One entry may have spoiled the call.
            return list(self._each(queue, batch)) if len(batch) > 1 else [error], None

    def _send_batch(self, queue: QueueRef, batch: Sequence[Entry]) -> Sequence[str | PenstockError]:
        try:
            return self._batch(queue, batch)
        except PenstockError as error:
            return [error]

    def _each(self, queue: QueueRef, entries: Sequence[Entry]) -> Iterator[str | PenstockError]:
        for entry in entries:
            yield from self.try_all(queue, [entry])

    def _entry(self, queue: QueueRef, message: Outgoing) -> Entry:
        entry = sealed(message.body, message.attributes, message.group, fifo=queue.is_fifo)
        if size_bytes(entry) > MESSAGE_BYTES_MAX:
            raise ConfigurationError(
                f"a message for queue {queue.name!r} has {size_bytes(entry)} bytes as SQS counts them, with its "
                f"attributes, and in base64 where its body is no text: SQS takes at most {MESSAGE_BYTES_MAX}; send a "
                "reference to what is larger"
            )
        if not queue.is_fifo:
            if message.delay_seconds:
                entry["DelaySeconds"] = whole_seconds(message.delay_seconds)
            return entry
        if message.delay_seconds:
            raise ConfigurationError(
                f"a message for queue {queue.name!r} has a delay: FIFO queues delay no single message; give the queue "
                "DelaySeconds, or take a standard queue"
            )
        if message.deduplication_id is not None:
            entry["MessageDeduplicationId"] = deduplication_id(message.deduplication_id)
        elif not self._queues.deduplicates_by_content(queue):
            entry["MessageDeduplicationId"] = secrets.token_hex(16)
        return entry

    def _batch(self, queue: QueueRef, entries: Sequence[Entry]) -> Sequence[str | PenstockError]:
        """Send as `_send_entries`, but without groups once a standard queue has refused them: the notes hold them."""
        if queue.url in self._groupless:
            return self._send_entries(queue, [_groupless(entry) for entry in entries])
        try:
            results = self._send_entries(queue, entries)
        except ConfigurationError as error:
            if not _refuses_groups(error):
                raise
            results = [error] * len(entries)
        refused = [position for position, result in enumerate(results) if _refuses_groups(result)]
        if queue.is_fifo or not any(GROUP in entries[position] for position in refused):
            return results
        self._groupless.add(queue.url)
        again = self._send_entries(queue, [_groupless(entries[position]) for position in refused])
        by_position = dict(zip(refused, again, strict=True))
        return [by_position.get(position, result) for position, result in enumerate(results)]

    def _send_entries(self, queue: QueueRef, entries: Sequence[Entry]) -> Sequence[str | PenstockError]:
        """Send one call and retry the failed entries alone. Raises if the call itself failed and no entry was sent."""
        ids: dict[int, str] = {}
        failed: Mapping[int, FailedEntry] = {}
        left = list(range(len(entries)))
        for tries in range(1, ENTRY_TRIES_MAX + 1):
            try:
                result = self._api.on(
                    queue, SEND, Entries=[{"Id": str(position), **entries[position]} for position in left]
                )
            except PenstockError as error:
                if _was_refused_unread(error) and tries < ENTRY_TRIES_MAX:
                    self._batches.pause(tries)
                    continue
                if not ids:
                    raise
                return [ids.get(position, error) for position in range(len(entries))]
            ids |= {int(entry["Id"]): entry["MessageId"] for entry in result.get("Successful", ())}
            failed = {**failed, **failures(result, left)}
            left = [position for position in left if position not in ids and not failed[position].never]
            if not left or tries == ENTRY_TRIES_MAX:
                break
            self._batches.pause(tries)
        return [ids.get(position) or _refused(queue, failed[position]) for position in range(len(entries))]


def _refuses_groups(result: str | PenstockError) -> bool:
    return isinstance(result, ConfigurationError) and GROUP in str(result)


def _groupless(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != GROUP}


def _is_of_queue(result: str | PenstockError) -> bool:
    """Return True if the error concerns the queue or our permissions, not a single message."""
    return isinstance(result, ConfigurationError) and result.__cause__ is not None and not is_invalid(result)


def _behind(failed: PenstockError) -> PenstockError:
    return TemporaryError(f"it was not sent, to keep the order of its group: a message before it failed ({failed})")


def _was_refused_unread(error: PenstockError) -> bool:
    """Return True if the call certainly sent nothing and a retry may succeed."""
    refused = isinstance(error, TemporaryError) and not isinstance(error, UnknownOutcome)
    return refused and error.__cause__ is not None


def _refused(queue: QueueRef, failed: FailedEntry) -> PenstockError:
    if failed.never:
        return ConfigurationError(f"the queue {queue.name!r} never takes this message: {failed}")
    return TemporaryError(f"the queue {queue.name!r} did not take a message: {failed}")


def _partly(error: PenstockError, *, taken: int, of: int) -> PenstockError:
    """Return the error of a send that stopped at ``error``; it reports the messages already in the queue."""
    if not taken or not isinstance(error, TemporaryError) or isinstance(error, UnknownOutcome):
        return error
    were = worded(taken, "was sent before that, and is", "were sent before that, and are")
    return UnknownOutcome(f"{error}; {taken} of {of} messages {were} in the queue")


def _check(queue: str, message: Outgoing) -> None:
    check_delay(message.delay_seconds, queue=queue)
    shared.check_outgoing(queue, [message])


def _batched(entries: Sequence[Entry], *, fifo: bool) -> Iterator[Sequence[Entry]]:
    batch: list[Entry] = []
    groups: set[str] = set()
    size = 0
    for entry in entries:
        entry_size, group = size_bytes(entry), entry.get(GROUP, "")
        full = len(batch) == BATCH_MAX or size + entry_size > MESSAGE_BYTES_MAX
        if batch and (full or (fifo and group in groups)):
            yield batch
            batch, groups, size = [], set(), 0
        batch.append(entry)
        groups.add(group)
        size += entry_size
    if batch:
        yield batch
