"""Export dead-lettered messages as JSON lines without loss, and import them again.

A body that is not text is written as base64 under the key `body_base64`, such an attribute under `base64`.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.errors import UsageError
from penstock.messaging.death import DEATH_ATTRIBUTE
from penstock.messaging.message import ORIGIN_ATTRIBUTE, Attributes, Message, Outgoing
from penstock.messaging.replay import Replay, dead_letter_replay_id, replay_id_of

FORMAT = 1  # version of the format, in each line
LINE_BYTES_MAX = 16 * 1024 * 1024
_IMPORTED = "import"  # queue of imported messages in the record of replays


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMessage:
    """A dead-lettered message as read from a line."""

    queue: str
    message: Message
    digest: str  # of the line; identical for the same message

    @property
    def replay_id(self) -> str:
        """The id of a replay of the message from the queue that it was exported from."""
        return dead_letter_replay_id(self.queue, self.message)

    def intent(self, queue: str) -> Replay:
        """Return the replay that imports the message into a queue.

        Its id depends on the line alone, so the message is sent only once, even if its file is imported again or into
        another queue.
        """
        return Replay(
            replay_id=replay_id_of(_IMPORTED, self.digest),
            dead_letter_queue=_IMPORTED,
            dead_letter_id=self.digest,
            queue=queue,
            count=0,
            due_at=0.0,
        )

    def outgoing(self, intent: Replay) -> Outgoing:
        """Return the message to send: unchanged, with its message id as an attribute if it has no death."""
        message = self.message
        origin = {} if DEATH_ATTRIBUTE in message.attributes else {ORIGIN_ATTRIBUTE: message.id}
        return Outgoing(
            body=message.body,
            attributes={**origin, **message.attributes},
            group=message.group,
            deduplication_id=intent.replay_id,
        )


def line_of(dead_letter: DeadLetteredMessage) -> bytes:
    """Return one line, including the line feed."""
    message = dead_letter.message
    fields = {
        "penstock_letter": FORMAT,
        "queue": dead_letter.queue,
        "id": message.id,
        "enqueued_at": message.enqueued_at,
        "group": message.group,
        **_body(message.body),
        "attributes": {name: _value(value) for name, value in message.attributes.items()},
    }
    return json.dumps(fields).encode("ascii") + b"\n"


def read_line(line: bytes, *, number: int, file: str) -> ExportedMessage:
    """Parse a line. Raises `UsageError`, naming file and line, if no export wrote it."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise _MalformedLine("it is not a JSON object")
        if fields["penstock_letter"] != FORMAT:
            raise _MalformedLine(f"its format is not {FORMAT}")
        return ExportedMessage(queue=_text(fields["queue"]), message=_message(fields), digest=_digest(line))
    except _MalformedLine as error:
        why = str(error)
    except KeyError as error:
        why = f"it has no {error.args[0]}"
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        why = "it is not JSON"
    except (ValueError, TypeError, AttributeError, OverflowError):
        why = "one of its fields has a value that no export writes"
    raise UsageError(f"Line {number:,} of {file} is not an exported dead letter: {why}.")


class _MalformedLine(Exception):
    """A line that no export wrote; the text is the reason."""


def _message(fields: Mapping[str, Any]) -> Message:
    group = fields["group"]
    return Message(
        id=_text(fields["id"]),
        body=_bytes(fields),
        enqueued_at=float(fields["enqueued_at"]),
        attributes=_attributes(fields["attributes"]),
        group=None if group is None else _text(group),
    )


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.strip()).hexdigest()[:32]


def _body(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def _bytes(fields: Mapping[str, Any]) -> bytes:
    if "body" in fields:
        return _text(fields["body"]).encode("utf-8")
    return base64.b64decode(_text(fields["body_base64"]), validate=True)


def _value(value: str | bytes) -> str | Mapping[str, str]:
    return value if isinstance(value, str) else {"base64": base64.b64encode(value).decode("ascii")}


def _attributes(values: Mapping[str, Any]) -> Attributes:
    return {
        name: value if isinstance(value, str) else base64.b64decode(_text(value["base64"]), validate=True)
        for name, value in values.items()
    }


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
