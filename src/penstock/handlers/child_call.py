"""One delivery in the hands of a function in another process."""

from dataclasses import replace
from typing import Any

from penstock.errors import ClaimLost
from penstock.handlers.call import NotBegun, Opened, Surroundings
from penstock.handlers.child import SentCall
from penstock.handlers.children import Child, Children
from penstock.handlers.plain_call import PlainCall
from penstock.messaging.claims import HeldClaim
from penstock.messaging.delivery import Delivery


class ChildCall(PlainCall):
    """A thread of the pool waits for the child. Interrupting kills it: C code that hangs hears nothing else."""

    def __init__(self, delivery: Delivery, around: Surroundings, children: Children) -> None:
        super().__init__(delivery, around)
        self._children = children
        self._child: Child | None = None  # taken away under the lock; written by the thread that runs

    def claim(self) -> HeldClaim | None:
        """As of any call. A child that was suspended must not keep its lease: it is then given up as lost."""
        child = self._child
        if child is not None and child.suspended:
            raise ClaimLost("the process of the function was suspended")
        return super().claim()

    def drain(self) -> None:
        super().drain()
        if self._around.declaration.on_stop == "give_back":  # it sees no checkpoint over there
            self._kill()

    def interrupt(self) -> None:
        super().interrupt()
        self._kill()

    def called(self, opened: Opened) -> Any:
        context = self.context(opened)
        sent = SentCall(
            message=replace(context.message, attributes=dict(context.message.attributes)),  # a proxy cannot travel
            queue=context.queue,
            handler=context.handler,
            attempt=context.attempt,
            previous_attempt=context.previous_attempt,
            key=context.key,
            carrier=self._around.tracing.carrier(),
        )
        try:
            child = self._child = self._children.take()
        except OSError as error:
            raise NotBegun(f"no process can be started for the handler: {error}") from error
        try:
            context.checkpoint()  # interrupted before there was a child to kill
            return child.call(sent, tell_retry=context.tell_retry)
        except Exception:
            context.checkpoint()  # killed by us: not the function's failure
            raise
        finally:
            with self._lock:
                self._child = None
            self._children.put_back(child)

    def _kill(self) -> None:
        with self._lock:  # or it might work for somebody else by now
            if self._child is not None:
                self._child.kill()
