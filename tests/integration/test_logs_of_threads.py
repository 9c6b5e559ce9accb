"""What tasks print and log in workers that are threads, from each place that shows it."""

import logging
import sys

import pytest

from scalable import ScalableSession
from scalable.errors import ClusterError
from unit.programs import printed_by

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 2, processes: false}}
components: {small: {cpus: 1, memory: 300M}, big: {cpus: 1, memory: 300M}}
"""


STREAMS = """\
import sys
from scalable import ScalableSession

if __name__ == "__main__":
    before = sys.stdout, sys.stderr
    with ScalableSession.local({"a": 2}) as client, ScalableSession.local({"b": 1}) as other:
        assert (sys.stdout, sys.stderr) != before
    print((sys.stdout, sys.stderr) == before)
"""


def talk(word):
    print(f"{word} is printed")
    logging.getLogger("model").warning("%s is logged", word)
    sys.stderr.write(f"{word} is an error\n")


@pytest.fixture
def session(tmp_path):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    return ScalableSession.from_yaml(tmp_path / "scalable.yaml", "local")


def has(text, word):
    return all(f"{word} is {verb}" in text for verb in ("printed", "logged", "an error"))


@pytest.fixture
def _logging():
    """A handler that writes to the stream of errors, as that of ``logging.basicConfig``."""
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("_logging")
def test_each_place_has_what_a_task_has_printed_and_logged(session):
    with session.start() as client:
        session.scale({"small": 1, "big": 1})
        wet = client.submit(talk, "rain", tag="small")
        dry = client.submit(talk, "sun", tag="big")
        client.gather([wet, dry])
        (text,) = client.get_logs(wet).values()
        assert has(text, "rain")
        assert "sun" not in text
        ((worker, text),) = client.get_logs("small").items()
        assert has(text, "rain")
        assert "sun" not in text
        assert client.get_logs(worker).keys() == {worker}
        everything = client.get_logs()
        assert has("".join(everything.values()), "rain")
        assert has("".join(everything.values()), "sun")
        assert has("".join(map(str, session.cluster.get_logs(cluster=False).values())), "sun")
        with pytest.raises(ClusterError, match="no worker or pool 'moon'"):
            client.get_logs("moon")
    session.close()
    ((stopped, text),) = session.logs("big").items()
    assert stopped != worker
    assert has(text, "sun")


def test_the_streams_of_the_process_are_its_own_again_after_the_last_session():
    assert printed_by(STREAMS) == "True\n"
