"""Queues of SQS.

- `SqsQueues`: resolve names, URLs and ARNs; find dead-letter queues; create queues on request
- `read_stats`, `purge`: approximate counts of a queue, and emptying it
"""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.brokers import shared
from penstock.brokers.sqs.client import QueueRef, SqsApi, code_of, is_invalid, is_taken
from penstock.brokers.sqs.limits import (
    OLD_MESSAGE_BYTES_MAX,
    RECEIVES_MAX,
    RETENTION_SECONDS_MAX,
    RETENTION_SECONDS_MIN,
    arn_name,
    base_name,
    dead_letter_name,
    valid_name,
    whole_seconds,
)
from penstock.errors import ConfigurationError, PenstockError, QueueMissing, TemporaryError
from penstock.messaging.broker import QueueSettings, QueueStats, conventional_source, is_fifo, names_dead_letters
from penstock.messaging.clock import Clock

POLICY_SECONDS = 300.0  # how long a queue's attributes are cached
_PAGE = 1_000
_CREATION_SECONDS_MIN = 60  # between deleting a queue and creating it again; for the error message only
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
PURGE_SECONDS = 60  # between two purges of one queue; one takes up to as long


class SqsQueues:
    """Queues by name, URL or ARN, each looked up once. Thread-safe."""

    def __init__(self, api: SqsApi, *, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, QueueRef] = {}  # written under the lock, as is `_attributes`
        self._attributes: dict[str, tuple[float, Mapping[str, str]]] = {}  # by URL, with the monotonic time of reading

    def find(self, queue: str) -> QueueRef:
        """Return the queue. Raise `QueueMissing`, a `ConfigurationError`, if it does not exist."""
        shared.check_queue(queue)
        with self._lock:
            found = self._found.get(queue)
        if found is None:
            found = self._look_up(queue)
            with self._lock:
                self._found[queue] = found
        return found

    def know(self, queue: str, url: str) -> None:
        """Use this URL for the queue. No lookup is then made, which would need a permission of its own."""
        with self._lock:
            self._found[queue] = QueueRef(name=queue, url=url)

    def forget(self, queue: str) -> None:
        """Forget a queue that is or may be deleted, so that it is looked up again."""
        with self._lock:
            missing = self._found.pop(queue, None)
            if missing is not None:
                self._attributes.pop(missing.url, None)

    def dead_letter_name(self, queue: str) -> str:
        """Return the name of the queue's dead-letter queue, whether or not that exists."""
        try:
            target = self._redrive_target(self.find(queue))
        except QueueMissing:
            target = None
        return dead_letter_name(queue) if target is None else arn_name(target)

    def retention_seconds(self, queue: str) -> float | None:
        """Return the retention; None if the queue does not exist or its attributes may not be read."""
        try:
            seconds = self._attribute(self.find(queue), "MessageRetentionPeriod")
        except QueueMissing:
            return None
        return None if seconds is None else float(seconds)

    def dead_letter_queue(self, queue: QueueRef) -> QueueRef:
        """Return the queue named by the redrive policy, else the one with the conventional name.

        Raises `QueueMissing` if it does not exist.
        """
        target = self._redrive_target(queue)
        if target is not None:
            return self.find(target)
        name = dead_letter_name(base_name(queue.url))
        try:
            return self.find(name)
        except QueueMissing as error:
            raise QueueMissing(
                f"The queue {queue.name!r} has no dead-letter queue: its redrive policy names none, and there is no "
                f"queue {name!r}; create that one, or give the queue a redrive policy."
            ) from error

    def receives_max(self, queue: str) -> int | None:
        """Return after how many receives SQS itself moves a message of that queue; None if it does not, or if unknown.

        Raises nothing, since the caller already holds the messages.
        """
        try:
            count = self._redrive_policy(self.find(queue)).get("maxReceiveCount")
            return None if count is None else int(count)
        except (PenstockError, TypeError, ValueError):
            return None

    def deduplicates_by_content(self, queue: QueueRef) -> bool:
        """Return True if the FIFO queue accepts messages without a deduplication id."""
        return self._attribute(queue, "ContentBasedDeduplication") == "true"

    def bytes_max(self, queue: QueueRef) -> int:
        """Return the queue's limit for a message. If it is not reported or may not be read, assume that of older
        queues.
        """
        return int(self._attribute(queue, "MaximumMessageSize") or OLD_MESSAGE_BYTES_MAX)

    def names(self) -> Sequence[str]:
        """Return all queues of the account in this region, sorted."""
        names: list[str] = []
        token: dict[str, str] = {}
        while True:
            response = self._api.call("list_queues", MaxResults=_PAGE, **token)
            names += [base_name(url) for url in response.get("QueueUrls", ())]
            if not response.get("NextToken"):
                return sorted(set(names))
            token = {"NextToken": response["NextToken"]}

    def ensure(self, wanted: Sequence[QueueSettings]) -> None:
        """Create these queues, their DLQs and final DLQs if missing, and apply the settings.

        A DLQ created here gets a redrive policy with the largest receive count, since SQS continues counting the
        receives of the source queue. An existing DLQ is left as it is.
        """
        named = {settings.name for settings in wanted}
        for settings in wanted:
            self._create(settings.name, {"MessageRetentionPeriod": str(_retention_seconds(settings))})
        for name in dict.fromkeys(shared.dead_letter_queue(settings) for settings in wanted):
            if name not in named:
                self._ensure_dead_letters(valid_name(name))
        for settings in wanted:
            if settings.receives_max is not None or settings.dead_letter_queue is not None:
                # Otherwise its name determines its dead-letter queue, and SQS itself moves nothing.
                target = valid_name(shared.dead_letter_queue(settings))
                self._set_redrive(settings.name, target, settings.receives_max or RECEIVES_MAX)

    def _ensure_dead_letters(self, name: str) -> None:
        retention = {"MessageRetentionPeriod": str(int(RETENTION_SECONDS_MAX))}
        is_new = self._create(name, retention)
        if not is_new and (self._redrive_target(self.find(name)) is not None or not names_dead_letters(name)):
            return  # it has a redrive policy, or nothing marks it as a dead-letter queue
        second = valid_name(shared.dead_letter_queue(QueueSettings(name=name), is_dlq=True))
        if second != name:
            self._create(second, retention)
        if second != name and is_new:
            self._set_redrive(name, second, RECEIVES_MAX)

    def _look_up(self, queue: str) -> QueueRef:
        if queue.startswith(("https://", "http://")):
            return QueueRef(name=queue, url=valid_name(queue))
        if queue.startswith("arn:"):
            return self._by_arn(valid_name(queue))
        try:
            return self._by_name(queue, valid_name(queue))
        except QueueMissing:
            beside = self._dead_letters_elsewhere(queue)
            if beside is None:
                raise
            return QueueRef(name=queue, url=beside.url)

    def _by_name(self, queue: str, name: str, **owner: str) -> QueueRef:
        try:
            response = self._api.call("get_queue_url", queue=queue, QueueName=name, **owner)
        except ConfigurationError as error:
            if is_invalid(error):
                raise QueueMissing(
                    f"There can be no queue {queue!r} on SQS: names have up to 80 letters, digits, hyphens and "
                    "underscores; name another one."
                ) from error
            raise
        return QueueRef(name=queue, url=response["QueueUrl"])

    def _by_arn(self, arn: str) -> QueueRef:
        parts = arn.split(":")
        if len(parts) != 6 or parts[2] != "sqs" or not all(parts[3:]):
            raise ConfigurationError(f"{arn!r} is not the ARN of a queue: write arn:aws:sqs:REGION:ACCOUNT:NAME.")
        _, _, _, region, account, name = parts
        if region != self._api.region:
            raise ConfigurationError(
                f"The queue {arn!r} is in {region}, and this broker speaks to {self._api.region}: write sqs://{region}."
            )
        return self._by_name(arn, name, QueueOwnerAWSAccountId=account)

    def _dead_letters_elsewhere(self, queue: str) -> QueueRef | None:
        """Return the actual dead-letter queue, if ``queue`` is the conventional name of one and the source's redrive
        policy names another. Likewise for a final DLQ.
        """
        source = conventional_source(queue)
        if source is None:
            return None
        try:
            target = self._redrive_target(self.find(source))
            return None if target is None else self.find(target)
        except ConfigurationError:
            return None

    def _redrive_target(self, queue: QueueRef) -> str | None:
        """Return the ARN; None if the queue has no policy or its attributes may not be read."""
        target = self._redrive_policy(queue).get("deadLetterTargetArn")
        return target if isinstance(target, str) else None

    def _redrive_policy(self, queue: QueueRef) -> Mapping[str, Any]:
        try:
            policy = json.loads(self._attribute(queue, "RedrivePolicy") or "{}")
        except ValueError:
            return {}
        return policy if isinstance(policy, dict) else {}

    def _attribute(self, queue: QueueRef, name: str) -> str | None:
        now = self._clock.monotonic()
        with self._lock:
            read_at, attributes = self._attributes.get(queue.url, (now - POLICY_SECONDS, {}))
        if now - read_at >= POLICY_SECONDS:
            attributes = self._read_attributes(queue)
            with self._lock:
                self._attributes[queue.url] = (now, attributes)
        return attributes.get(name)

    def _read_attributes(self, queue: QueueRef) -> Mapping[str, str]:
        try:
            response = self._api.on(queue, "get_queue_attributes", AttributeNames=["All"])
        except (TemporaryError, QueueMissing):
            raise
        except ConfigurationError:  # not permitted: rely on the conventional names
            return {}
        attributes: Mapping[str, str] = response.get("Attributes", {})
        return attributes

    def _create(self, name: str, attributes: Mapping[str, str]) -> bool:
        """Create the queue, or set its attributes if it exists. Return True if it was created."""
        fifo = {"FifoQueue": "true"} if is_fifo(name) else {}
        try:
            self._set_attributes(name, attributes)
            return False
        except QueueMissing:
            self.forget(name)
        try:
            self._api.call("create_queue", queue=name, QueueName=name, Attributes={**attributes, **fifo})
        except PenstockError as error:
            if is_taken(error):  # another process has just created it, with other attributes
                self._set_attributes(name, attributes)
                return False
            raise type(error)(
                f"The queue {name!r} cannot be created: {error} A queue that was deleted can be created again after "
                f"{_CREATION_SECONDS_MIN} s."
            ) from error
        return True

    def _set_attributes(self, name: str, attributes: Mapping[str, str]) -> None:
        self._api.on(self.find(name), "set_queue_attributes", Attributes=dict(attributes))

    def _set_redrive(self, name: str, target: str, receives_max: int) -> None:
        dead_letters = self.find(target)
        arn = self._api.on(dead_letters, "get_queue_attributes", AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy: dict[str, Any] = {"deadLetterTargetArn": arn, "maxReceiveCount": min(receives_max, RECEIVES_MAX)}
        queue = self.find(name)
        self._api.on(queue, "set_queue_attributes", Attributes={"RedrivePolicy": json.dumps(policy)})
        with self._lock:
            self._attributes.pop(queue.url, None)


def read_stats(api: SqsApi, queues: SqsQueues, queue: str) -> QueueStats:
    """Return SQS's counts, eventually consistent, without ages. Messages released with a delay count as in flight."""
    try:
        response = api.on(queues.find(queue), "get_queue_attributes", AttributeNames=list(COUNTS))
    except QueueMissing:
        return shared.EMPTY_STATS
    visible, in_flight, delayed = (int(response.get("Attributes", {}).get(name, 0)) for name in COUNTS)
    return QueueStats(
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        oldest_visible_message_age_seconds=None,
        oldest_message_age_seconds=None,
    )


def purge(api: SqsApi, queues: SqsQueues, queue: str) -> int:
    """Purge the queue; return SQS's count before. Messages sent within the next minute may be deleted, too."""
    stats = read_stats(api, queues, queue)
    try:
        api.on(queues.find(queue), "purge_queue")
    except QueueMissing:
        return 0
    except TemporaryError as error:
        if error.__cause__ is None or code_of(error.__cause__) != "PurgeQueueInProgress":
            raise
        raise TemporaryError(
            f"the queue {queue!r} was purged within the last {PURGE_SECONDS} s, and SQS purges once in that time: "
            "purge again when it is over"
        ) from error
    return stats.messages


def _retention_seconds(settings: QueueSettings) -> int:
    return whole_seconds(min(max(settings.retention_seconds, RETENTION_SECONDS_MIN), RETENTION_SECONDS_MAX))
