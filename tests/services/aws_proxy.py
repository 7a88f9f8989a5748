"""The way to an AWS server through the fault proxy.

Neither server keeps anything over a kill. What a restart does to those who are connected is `AwsServer.leave` and
`come_back`; what a network does, on every way and to single requests, is here. A request is told by its words: those to
SQS say `AmazonSQS.DeleteMessage` and the like in their head, those to S3 begin as `PUT /bucket/key`.
"""

from typing import Any

from tests.services.aws_server import AwsServer, aws_at, client_at, environment_for
from tests.services.fault_proxy import FaultProxy

from penstock.storage.aws import Aws


class AwsProxy(FaultProxy):
    """A `FaultProxy` that a client of AWS takes for the server."""

    def __init__(self, server: AwsServer) -> None:
        super().__init__(("127.0.0.1", server.port))
        self._clients: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def aws(self) -> Aws:
        return aws_at(self.url)

    @property
    def environment(self) -> dict[str, str]:
        """For child processes that are to come this way."""
        return environment_for(self.url)

    def client(self, service: str) -> Any:
        """The harness's own client, by this way and without retries."""
        if service not in self._clients:
            self._clients[service] = client_at(self.url, service)
        return self._clients[service]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        super().close()
