"""A disk that fails during the work of an object handler."""

import errno
import os

import pytest
from tests.unit.pipeline.objects.scene import Scene

from penstock.ledger.records import ObjectState


@pytest.mark.parametrize("fault", [errno.EIO, errno.EBADMSG, errno.EUCLEAN])
def test_a_fault_that_several_objects_meet_counts_only_for_the_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    refs = [scene.put(name) for name in ("a", "b", "c")]
    scene.announce(*refs)
    handler = scene.handler(lambda obj: obj.read())

    def broken(descriptor: int, size_bytes: int, offset: int) -> bytes:
        raise OSError(fault, os.strerror(fault))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        for _ in range(10):
            scene.serve(handler)
            scene.clock.advance(1_000)
    assert sorted(scene.row(ref).attempts for ref in refs) == [0, 0, 1]
    scene.serve_to_the_end(handler)
    assert {scene.state(ref) for ref in refs} == {ObjectState.PROCESSED}
