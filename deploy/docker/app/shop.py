"""The example that compose.yaml, the task definitions and the manifests run. Put your own app in its place."""

from penstock import App, Message

app = App.from_config()  # settings from the environment and the secrets


@app.handler("orders")
def take(message: Message) -> None:
    """Called for each message of the queue; when it returns the message is gone, when it raises it comes back."""
    print(message.body.decode())  # noqa: T201 - so that there is something to see
