"""The example app of compose.yaml, of the task definition and of the manifests. Replace it by your own."""

from penstock import App, Message

app = App.from_config()  # settings from the environment and the secrets


@app.handler("orders")
def take(message: Message) -> None:
    """Process one message. It is acked when the function returns, and retried when the function raises."""
    print(message.body.decode())  # noqa: T201 - visible output for the example
