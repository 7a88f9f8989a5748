"""Fill a queue quickly, with requests without boto3, which would take longer to send than a worker to process."""

import http.client
import json
from collections.abc import Sequence
from typing import Any

BATCH = 10


class Filler:
    """One connection to a server that checks no signatures. For one thread."""

    def __init__(self, port: int, *, account: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._url = f"http://127.0.0.1:{port}/{account}"

    def make(self, queue: str) -> None:
        self._ask("CreateQueue", {"QueueName": queue})

    def fill(self, queue: str, numbers: Sequence[int], *, seconds: float = 0.0) -> None:
        """Send messages with their number and the time that their handler sleeps."""
        for at in range(0, len(numbers), BATCH):
            bodies = [json.dumps([number, seconds]) for number in numbers[at : at + BATCH]]
            entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
            self._ask("SendMessageBatch", {"QueueUrl": f"{self._url}/{queue}", "Entries": entries})

    def left(self, queue: str) -> int:
        """Return the number of messages in the queue, those in flight included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        asked = {"QueueUrl": f"{self._url}/{queue}", "AttributeNames": names}
        return sum(map(int, self._ask("GetQueueAttributes", asked)["Attributes"].values()))

    def close(self) -> None:
        self._connection.close()

    def _ask(self, operation: str, parameters: object) -> Any:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        self._connection.request("POST", "/", json.dumps(parameters), headers)
        answer = self._connection.getresponse()
        words = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise SystemExit(f"{operation}: the server answers {answer.status}: {words.decode()}")
        return json.loads(words or "{}")
