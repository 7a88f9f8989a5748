"""The fixture with one scene for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.pipeline.objects.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()
