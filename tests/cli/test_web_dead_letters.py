"""Dead letters replayed through the dashboard's pages, with real processes: the dashboard, and a worker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tests.cli.dead_letter_scene import DLQ, QUEUE, DeadLetterScene
from tests.cli.process import DEADLINE_SECONDS, SRC, Process
from tests.web.dead_site import DeadSite, form_of
from tests.web.markup import Markup, harmless

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.dead_letters.groups import group_id
from penstock.ledger import Ledger
from penstock.ledger.dead_letters import AuditRow

UNKNOWN, DOWN = "order 7 is unknown", "the gateway is down"
GROUP = group_id("order <n> is unknown")
EACH = 150
RATE = 50
SHOP = """
from pathlib import Path
from penstock import App

app = App.from_config()

@app.handler("orders")
def take(message):
    with Path("handled").open("a") as file:
        file.write(f"{message.body.decode()}\\n")
"""


class Dashboard:
    """A process of `penstock web`, and a browser without scripts."""

    def __init__(self, folder: Path, *, kill_at: str | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "web", "shop:app", "--address", "127.0.0.1:0", "--json"],
            cwd=folder,
            env=environment if kill_at is None else {**environment, "PENSTOCK_KILL_AT": kill_at},
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdout is not None
        url = json.loads("".join(self._process.stdout.readline() for _ in range(3)))["url"]
        self._client = httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS, follow_redirects=True)

    def get(self, path: str) -> Markup:
        return harmless(self._client.get(path).raise_for_status().text)

    def post(self, path: str, fields: Mapping[str, object]) -> tuple[str, Markup]:
        """Send a form; return the address that it leads to, and the page there."""
        token = re.search(r'name="csrf" value="([^"]*)"', self._client.get("/").text)
        response = self._client.post(path, data={"csrf": "" if token is None else token[1], **fields})
        return str(response.raise_for_status().url), harmless(response.text)

    def plan(self, **fields: object) -> Markup:
        """Plan a replay, and return the page of the complete plan."""
        address, page = self.post("/dead/plan", {"goal": "replay", **fields})
        return self.await_page(address, lambda page: "would be sent back" in page.text, page)

    def await_page(self, address: str, condition: Callable[[Markup], bool], page: Markup | None = None) -> Markup:
        end_at = time.monotonic() + DEADLINE_SECONDS
        page = page or self.get(address)
        while not condition(page):
            assert time.monotonic() < end_at, page.text
            page = self.get(address)
        return page

    def exit_code(self) -> int:
        return self._process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[DeadLetterScene]:
    """Create 300 dead letters with two errors."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / ".penstock").mkdir()
    with closing(SqliteBroker(tmp_path / ".penstock" / "queue.db", holder="test")) as broker:
        scene = DeadLetterScene(folder=tmp_path, broker=broker)
        scene.dead_letter(*(f"unknown-{n}" for n in range(EACH)), reason=UNKNOWN)
        scene.dead_letter(*(f"down-{n}" for n in range(EACH)), reason=DOWN)
        yield scene


def audit_of(scene: DeadLetterScene) -> list[AuditRow]:
    with closing(Ledger.open(f"sqlite:///{scene.folder}/.penstock/ledger.db")) as ledger:
        return list(ledger.audits.latest(limit=10))


def number_before(text: str, page: Markup) -> int:
    found = re.search(rf"([\d,]+) {text}", page.text)
    assert found is not None, page.text
    return int(found[1].replace(",", ""))


def done_of(page: Markup) -> int:
    return number_before(r"of [\d,]+ done", page)


def handled(scene: DeadLetterScene) -> Counter[str]:
    file = scene.folder / "handled"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def test_dead_letters_of_one_error_are_planned_replayed_aborted_and_then_replayed_to_the_end(
    scene: DeadLetterScene,
) -> None:
    worker = Process(scene.folder, "worker", "shop:app")
    dashboard = Dashboard(scene.folder)
    try:
        worker.expect("worker.started")
        page = dashboard.await_page("/dead", lambda page: "300 dead letters in all" in page.text)
        assert "order <n> is unknown" in page.text

        plan = dashboard.plan(group=GROUP, rate=RATE)
        assert number_before("dead letters would be sent back", plan) == EACH
        path, fields = form_of(plan, "planned")
        address, _ = dashboard.post(path, fields)
        running = dashboard.await_page(address, lambda page: done_of(page) >= RATE)
        dashboard.post(*form_of(running, "id"))
        ended = dashboard.await_page(address, lambda page: "left untouched." in page.text)
        sent, left = number_before("dead letters were sent back", ended), number_before("of the planned", ended)
        assert (RATE <= sent < EACH, sent + left) == (True, EACH)
        assert scene.broker.stats(DLQ).messages == 2 * EACH - sent
        (entry,) = audit_of(scene)
        assert (entry.action, entry.messages, entry.outcome) == ("replay", sent, "interrupted")
        assert entry.who.endswith(" via the dashboard")
        assert entry.details == {"group": GROUP, "group_name": "order <n> is unknown", "rate": float(RATE)}

        plan = dashboard.plan(group=GROUP)
        assert number_before("dead letters would be sent back", plan) == left
        address, _ = dashboard.post(*form_of(plan, "planned"))
        dashboard.await_page(address, lambda page: "dead letters were sent back" in page.text)
        assert audit_of(scene)[0].outcome == "done"
        DeadSite.await_that(lambda: handled(scene).total() >= EACH)
        assert handled(scene) == Counter(f"unknown-{n}" for n in range(EACH))
        assert scene.broker.stats(DLQ).messages == EACH
    finally:
        dashboard.close()
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("step", ["replay_intended", "replay_sent", "replay_marked"])
def test_a_dashboard_that_is_killed_in_a_replay_loses_nothing_and_the_next_replay_completes(
    scene: DeadLetterScene, step: str
) -> None:
    killed = Dashboard(scene.folder, kill_at=f"{step}:3")
    plan = form_of(killed.plan(rate=RATE), "planned")
    with pytest.raises(httpx2.HTTPError):  # as soon as the connection breaks
        killed.await_page(killed.post(*plan)[0], lambda _: False)
    assert killed.exit_code() == -signal.SIGKILL
    assert [entry.outcome for entry in audit_of(scene)] == [None]
    sent_twice = RATE if step == "replay_sent" else 0  # sent and not marked: the known duplicates

    dashboard = Dashboard(scene.folder)
    try:
        address, _ = dashboard.post(*form_of(dashboard.plan(), "planned"))
        ended = dashboard.await_page(address, lambda page: "sent back." in page.text)
        if step == "replay_marked":
            assert number_before("had been sent before", ended) == RATE
        assert "done" in ended.text
    finally:
        dashboard.close()
    assert scene.broker.stats(DLQ).messages == 0
    bodies = Counter(scene.bodies(QUEUE))
    assert bodies.keys() == {f"{kind}-{n}" for kind in ("unknown", "down") for n in range(EACH)}
    assert bodies.total() <= 2 * EACH + sent_twice
