"""A fault proxy for an AWS server.

It causes network faults, for all requests or single ones. The effect of a restart on clients is simulated by
`AwsServer.leave` and `come_back`, because the servers lose their data at a kill. A request is recognised by its bytes:
one to SQS has `AmazonSQS.DeleteMessage` or another operation in its head, one to S3 begins with `PUT /bucket/key`.
"""

from typing import Any

from tests.services.aws_server import AwsServer, aws_at, client_at, environment_for
from tests.services.fault_proxy import FaultProxy

from penstock.storage.aws import Aws


class AwsProxy(FaultProxy):
    """A `FaultProxy` that looks like an AWS server to clients."""

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
        """Return the environment for child processes that use the proxy."""
        return environment_for(self.url)

    def client(self, service: str) -> Any:
        """Return the tests' own client, through the proxy and without retries."""
        if service not in self._clients:
            self._clients[service] = client_at(self.url, service)
        return self._clients[service]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        super().close()
