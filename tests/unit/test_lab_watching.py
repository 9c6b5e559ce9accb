"""Clusters as JupyterLab's sidebar sees them, from fabricated records."""

import asyncio
import threading
import time

import pytest

from scalable.errors import ClusterError, ProviderError
from scalable.liveness import identify_process
from scalable.model import PoolStatus
from scalable.records import ClusterDirectory
from scalable.watch.lab import show
from scalable.watch.lab import sidebar as watching
from scalable.watch.lab.sidebar import BackgroundReading, Page, Sidebar, page_of
from unit.made_records import made_record

TOKEN = "secret-of-the-page"
LINK = f"http://127.0.0.1:8787/status?token={TOKEN}"
GONE = {**identify_process(), "start_ticks": 1, "process_started_at": 1.0}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(watching, "ask_places", lambda: ([], []))
    monkeypatch.setattr(watching, "PATIENCE_S", 60.0)
    # The recorded scheduler is this process.
    monkeypatch.setattr(watching, "end", lambda name: pytest.fail(f"{name} was ended"))
    # Each look reads the files.
    monkeypatch.setattr(watching, "NEAR_S", 0.0)


def made(name="one", running=2, scheduler=None, **more):
    """Put a cluster on record; its scheduler seems to be this process."""
    directory = ClusterDirectory.create(made_record(name, stage="made", tags=("a",), **more))
    known = {**identify_process(), "address": f"tls://127.0.0.1:{4700 + len(name)}"}
    directory.write_scheduler({**known, "dashboard": LINK, **(scheduler or {})})
    pools = {"a": PoolStatus(wanted=3, running=running).to_dict()}
    directory.write_status(
        {"state": "running", "reason": None, "pools": pools, "managers": []}
        | {"written_at": time.time(), "ends_at": None, "idle_ends_at": None}
        | {"address": known["address"]}
    )
    return directory


def shown(sidebar):
    return {model["name"]: model["workers"] for model in asyncio.run(sidebar.models())}


def seen(directory):
    return asyncio.run(Sidebar("/").running())[directory.id]


def test_a_damaged_record_costs_no_other_row():
    made()
    (made("broken").path / "status.json").write_text("[")
    (made("worse").path / "record.json").write_text("{")
    assert shown(Sidebar("/")) == {"one": 2}


def test_a_disconnected_cluster_is_away_until_it_is_shown_again():
    sidebar = Sidebar("/")
    directory = made()
    assert shown(sidebar) == {"one": 2}
    cluster = asyncio.run(sidebar.find(directory.id))
    assert asyncio.run(sidebar.leave(cluster)) is False
    assert shown(sidebar) == {}
    assert shown(Sidebar("/")) == {"one": 2}  # as after a restart of Jupyter
    # Pages that are open stay so.
    assert asyncio.run(sidebar.find(directory.id)) is not None
    time.sleep(0.02)
    show("one")
    assert shown(sidebar) == {"one": 2}
    asyncio.run(sidebar.leave(cluster))
    assert shown(sidebar) == {}


def test_only_what_this_process_has_started_counts_as_started_here(child):
    other = {**identify_process(), "pid": child.pid}
    assert Sidebar.started_here(seen(made(creator=identify_process())))
    assert not Sidebar.started_here(seen(made("two", creator=other)))
    assert not Sidebar.started_here(seen(made("three")))


def test_rows_of_our_own_clusters_are_not_listed_twice():
    sidebar = Sidebar("/")
    made()
    (model,) = asyncio.run(sidebar.models())
    other = {**model, "name": "LocalCluster 1", "scheduler_address": "tcp://127.0.0.1:9"}
    assert sidebar.not_ours([{**model, "name": "DiscoveredCluster 1"}, other]) == [other]


def test_a_remote_cluster_that_does_not_answer_delays_nobody(monkeypatch):
    made()
    hanging = threading.Event()
    read = watching.status_of

    def slow(directory, now):
        if directory.record().remote:
            hanging.wait(60)
        return read(directory, now)

    monkeypatch.setattr(watching, "status_of", slow)
    sidebar = Sidebar("/")
    assert shown(sidebar) == {"one": 2}
    monkeypatch.setattr(watching, "PATIENCE_S", 0.1)
    for number in range(20):
        made(f"far-{number}", remote=True)
    try:
        assert shown(sidebar) == {"one": 2}
        for _ in range(5):
            assert shown(sidebar) == {"one": 2}
        # One thread for each, however often somebody looks.
        asking = [t.name for t in threading.enumerate() if t.name.startswith("scalable-lab-")]
        assert len(asking) == len(set(asking)) <= 22
    finally:
        hanging.set()


def test_a_remote_cluster_that_is_silent_for_long_is_unreachable(monkeypatch):
    directory = made("far", remote=True)
    place = ClusterDirectory(directory.path)
    monkeypatch.setattr(watching, "all_directories", lambda: ([place], []))
    sidebar = Sidebar("/")
    assert shown(sidebar) == {"far": 2}
    reading = sidebar._readings[directory.id]
    reading.read_at -= watching.SILENT_S + 1

    def fail():
        raise ProviderError("no answer")

    reading._read = fail
    assert shown(sidebar) == {"far (unreachable)": 2}


def test_a_reading_goes_on_after_an_error():
    answers = [OSError("no"), 5]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reading = BackgroundReading(read, "reading")
    reading.begin(0).result(30)
    assert reading.result is None
    reading.begin(10).result(30)  # an error is not fresh
    assert reading.result == 5
    assert reading.begin(10) is None


def test_reading_twenty_clusters_stays_off_the_event_loop(monkeypatch):
    for number in range(20):
        made(f"n{number}")
    readers = set()
    read = watching.status_of

    def noting(*arguments):
        readers.add(threading.get_ident())
        return read(*arguments)

    monkeypatch.setattr(watching, "status_of", noting)
    assert len(shown(Sidebar("/"))) == 20
    assert readers
    assert threading.get_ident() not in readers


# Pages --------------------------------------------------------------------------------------------


def test_the_url_of_a_page_with_tls_or_of_another_family_is_right():
    page = Page("::1", 443, TOKEN, tls=object())
    assert page.url("/a", "") == "https://[::1]:443/a"
    assert page.url("/a", "", socket=True) == "wss://[::1]:443/a"


def test_no_token_goes_to_the_port_of_a_scheduler_that_is_gone():
    cluster = seen(directory := made())
    directory.write_scheduler({**GONE, "address": "tls://127.0.0.1:1", "dashboard": LINK})
    with pytest.raises(ClusterError, match="has stopped"):
        page_of(cluster)


def test_a_page_on_the_loopback_of_another_machine_is_not_looked_for_here():
    elsewhere = {"host": "node17", "address": "tls://10.0.0.7:1"}
    cluster = seen(made(scheduler=elsewhere))
    with pytest.raises(ClusterError, match="only on the machine of process .* on node17"):
        page_of(cluster)
    link = "http://10.0.0.7:8787/status?token=t"
    cluster = seen(made("other", scheduler={**elsewhere, "dashboard": link}))
    assert page_of(cluster).host == "10.0.0.7"


def test_a_cluster_without_a_page_tells_how_to_get_one():
    with pytest.raises(ClusterError, match="has no dashboard .*--dashboard"):
        page_of(seen(made(scheduler={"dashboard": None})))


def test_the_mark_of_a_cluster_that_is_shown_again_is_private():
    directory = made()
    show("one")
    (mark,) = directory.path.glob("shown-*")
    assert mark.stat().st_mode & 0o077 == 0
