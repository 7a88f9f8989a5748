"""Cyclic garbage is collected less often during batches, and as before after them."""

import gc
from collections.abc import Iterator

import pytest

from penstock.app.collector import BATCH_THRESHOLDS, DEFAULTS, MESSAGE_THRESHOLDS, rare_collections
from penstock.cli.lazy import no_collections

DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def default_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*DEFAULT)
    yield
    gc.set_threshold(*before)
    gc.enable()


def test_collections_are_rare_inside_the_block_and_as_before_after_it() -> None:
    with rare_collections(), rare_collections():
        assert gc.get_threshold() == BATCH_THRESHOLDS
        assert gc.isenabled()
    assert gc.get_threshold() == DEFAULT


def test_a_worker_without_batches_has_thresholds_of_its_own() -> None:
    with rare_collections(MESSAGE_THRESHOLDS):
        assert gc.get_threshold() == MESSAGE_THRESHOLDS
    assert gc.get_threshold() == DEFAULT


def test_an_error_puts_the_thresholds_back() -> None:
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == DEFAULT


def test_thresholds_that_the_user_set_stay() -> None:
    gc.set_threshold(5_000, 5, 5)
    with rare_collections():
        assert gc.get_threshold() == (5_000, 5, 5)
        gc.set_threshold(6_000)
    assert gc.get_threshold()[0] == 6_000


def test_thresholds_that_are_set_inside_the_block_stay() -> None:
    with rare_collections():
        gc.set_threshold(9_000, 9, 9)
    assert gc.get_threshold() == (9_000, 9, 9)


def test_a_collector_that_the_user_turned_off_stays_off() -> None:
    gc.disable()
    with rare_collections():
        assert not gc.isenabled()
        assert gc.get_threshold() == DEFAULT
    assert not gc.isenabled()


def test_this_pythons_own_thresholds_are_known() -> None:
    import subprocess
    import sys

    own = subprocess.run([sys.executable, "-c", "import gc; print(gc.get_threshold())"], capture_output=True, text=True)
    assert own.stdout.strip() in {str(thresholds) for thresholds in DEFAULTS}


def test_imports_are_not_interrupted_by_the_collector() -> None:
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled(), "the user turned it off"
    finally:
        gc.enable()


def test_the_collector_is_on_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), no_collections():
        raise ImportError
    assert gc.isenabled()
