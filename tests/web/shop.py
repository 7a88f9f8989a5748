"""The app that the dashboard's tests show: handlers, two pipelines and an object handler, below one folder."""

from pathlib import Path

from penstock import App, Context, DeltaSink, IncomingObject, ObjectContext, ObjectSource
from penstock.app.backends import file_ledger
from penstock.app.brokers import file_broker
from penstock.app.state import QUEUE_FILE
from penstock.config import Settings

JAPANESE_QUEUE = "注文処理-東京リージョン"
LONG_QUEUE = "customer-notification-preferences-synchronisation-with-the-external-marketing-platform-eu-central-1"
HANDLED_QUEUES = ("orders", "payments", "invoices", "mails", "reports", "idle", JAPANESE_QUEUE, LONG_QUEUE)
LAGGING_QUEUE, PAUSED_QUEUE, BROKEN_QUEUE, UNSERVED_QUEUE = "invoices", "mails", "payments", "reports"
FLOODED_QUEUE, NO_CONSUMER_QUEUE, EMPTY_QUEUE = "orders", "exports", "idle"
CLICKS, THUMBNAILS = "clicks", "thumbnails"
LONG_PIPELINE = "refunds-of-marketplace-partners-by-country-and-currency-daily-v2"
STATE = ".penstock"


def settings_of(folder: Path) -> Settings:
    """Return settings with queue, ledger and data directory below the folder."""
    state = folder / STATE
    return Settings(
        broker=file_broker(state / QUEUE_FILE),
        ledger=file_ledger(state / "ledger.db"),
        data_dir=str(state),
        objects_archive=str(folder / "archive"),
    )


def shop(folder: Path) -> App:
    """Return the app with everything below the folder. Nothing is created."""
    app = App(settings=settings_of(folder), name="shop")
    for number, queue in enumerate(HANDLED_QUEUES):
        app.handler(queue, name=queue if queue.isascii() else f"handler-{number}")(_handle)
    for name in (CLICKS, LONG_PIPELINE):
        source = ObjectSource(folder / "landing" / name, queue=f"{name}-files", schema="id long")
        app.pipeline(name, source=source, sink=DeltaSink(folder / "tables" / name))
    app.object_handler(f"{THUMBNAILS}-files", source=str(folder / "landing" / THUMBNAILS), name=THUMBNAILS)(_draw)
    return app


def _handle(body: object, context: Context) -> None:
    """Do nothing."""


def _draw(obj: IncomingObject, context: ObjectContext) -> None:
    """Do nothing."""
