"""Errors raised while a value is unpickled reach its reader, without an entry of Dask's log."""

import logging

import pytest
from distributed.protocol import core, to_serialize

from scalable.dask_compat.client import survive_unpickling


def explode(kind):
    raise kind("boom")


class Bad:
    """A value that cannot be loaded."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return explode, (self.kind,)


@pytest.fixture
def logged(caplog):
    survive_unpickling()
    protocol = logging.getLogger("distributed.protocol.core")
    protocol.addHandler(caplog.handler)
    yield caplog
    protocol.removeHandler(caplog.handler)


@pytest.mark.parametrize(("kind", "raised"), [(ValueError, ValueError), (SystemExit, RuntimeError)])
def test_error_of_a_value_is_raised_and_not_logged(logged, kind, raised):
    frames = core.dumps({"x": to_serialize(Bad(kind))})
    with pytest.raises(raised, match="boom"):
        core.loads(frames)
    assert [each for each in logged.records if each.levelno > logging.INFO] == []


def test_unreadable_message_is_logged(logged):
    with pytest.raises(Exception):  # noqa: B017, PT011 - the class is msgpack's
        core.loads([b"\xc1"])
    assert {each.levelno for each in logged.records} == {logging.CRITICAL}
