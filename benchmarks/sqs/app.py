"""Penstock as users run it: an app module for `penstock worker`, with a plain and an async handler."""

from benchmarks.sqs import peer
from penstock import App, Message, Queue

plain = Queue[Message]("plain")
waiting = Queue[Message]("async")
app = App.from_config(log_level="warning")  # a line a message would be as much work again
book = peer.effects()


@app.handler(plain)
def work(message: Message) -> None:
    peer.work(book, message.body)


@app.handler(waiting)
async def work_async(message: Message) -> None:
    await peer.work_async(book, message.body)
