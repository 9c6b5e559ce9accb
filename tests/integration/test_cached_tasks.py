"""Calls that are answered by the results of earlier calls, on a real cluster."""

import asyncio
import decimal
import gc
import logging
import os
import textwrap
import threading
import time
from pathlib import Path

import pytest
from distributed import LocalCluster, as_completed, wait

from scalable import ScalableClient, ScalableSession, cached
from scalable.cache.errors import UnstableValueError
from scalable.cache.key import KeyOptions
from scalable.model.cache_settings import CacheSettings


def fit(x, log, factor=2):
    with Path(log).open("a") as file:
        file.write(f"fit {x}\n")
    return {"value": x * factor}


def edited_fit(x, log):
    with Path(log).open("a") as file:
        file.write(f"edited {x}\n")
    return {"value": x + x}


def wide(x, log):
    with Path(log).open("a") as file:
        file.write(f"wide {x}\n")
    return bytes(200_000)


def total(parts, log):
    with Path(log).open("a") as file:
        file.write("total\n")
    return sum(part["value"] for part in parts)


def value_of(part):
    return part["value"]


def failing(x, log):
    with Path(log).open("a") as file:
        file.write(f"failing {x}\n")
    raise OSError("no data")


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(cluster, tmp_path):
    with ScalableClient(cluster, remembering=CacheSettings(str(tmp_path / "results"))) as made:
        yield made


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def lines(log):
    return sorted(log.read_text().split("\n")[:-1])


def options():
    return KeyOptions(ignore=("log",))


def test_equal_call_of_a_later_client_does_not_run(cluster, client, tmp_path, log):
    assert client.submit(fit, 3, str(log), cache=options()).result() == {"value": 6}
    with ScalableClient(cluster, remembering=CacheSettings(str(tmp_path / "results"))) as later:
        future = later.submit(fit, 3, str(log), cache=options())
        assert future.done()
        assert future.result() == {"value": 6}
        assert later.submit(fit, 4, str(log), cache=options()).result() == {"value": 8}
        assert later.submit(fit, 3, str(log), 5, cache=options()).result() == {"value": 15}
        assert later.submit(fit, 3, str(log)).result() == {"value": 6}
    assert lines(log) == ["fit 3", "fit 3", "fit 3", "fit 4"]


def test_task_is_a_hit_when_an_edited_task_returns_the_same(cluster, client, tmp_path, log):
    def total_of(client, function, x):
        part = client.submit(function, x, str(log), cache=options())
        return client.submit(total, [part], str(log), cache=options())

    assert total_of(client, fit, 3).result() == 6
    assert total_of(client, edited_fit, 3).result() == 6
    assert lines(log) == ["edited 3", "fit 3", "total"]
    assert total_of(client, edited_fit, 4).result() == 8
    assert lines(log).count("total") == 2
    with ScalableClient(cluster, remembering=CacheSettings(str(tmp_path / "results"))) as later:
        assert total_of(later, edited_fit, 3).result() == 6
    assert len(lines(log)) == 5


def test_found_result_needs_no_worker(client, tmp_path, log):
    client.submit(fit, 3, str(log), cache=options()).result()
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        ScalableClient(empty, remembering=CacheSettings(str(tmp_path / "results"))) as other,
    ):
        futures = [other.submit(fit, 3, str(log), cache=options()) for _ in range(2)]
        assert other.gather(futures) == [{"value": 6}] * 2
        assert not wait(futures, timeout=10).not_done
        assert [future.result() for future in as_completed(futures)] == [{"value": 6}] * 2


def test_each_reader_of_a_found_result_has_its_own_copy(client, log):
    client.submit(fit, 3, str(log), cache=options()).result()
    future = client.submit(fit, 3, str(log), cache=options())
    future.result()["value"] = "changed"
    assert future.result() == {"value": 6}


def found_again(client, log):
    """Return futures of three calls, of which the first two are found."""
    for x in (1, 2):
        client.submit(fit, x, str(log), cache=options()).result()
    return client.map(fit, [1, 2, 3], [str(log)] * 3, cache=options())


def test_found_results_are_arguments_of_other_calls(client, log):
    futures = found_again(client, log)
    assert client.submit(total, futures, str(log)).result() == 12
    assert client.submit(total, futures, str(log), tag=None).result() == 12
    assert client.gather(client.map(value_of, futures)) == [2, 4, 6]
    assert client.get({"a": (value_of, futures[0])}, "a") == 2
    assert list(client.pool().map(value_of, futures)) == [2, 4, 6]
    assert client.gather({"a": futures, "b": (futures[1],)})["b"] == ({"value": 4},)
    assert lines(log).count("fit 1") == 1


def test_chain_of_cached_tasks_is_found_by_the_content_of_its_parts(client, log):
    def chain():
        parts = client.map(fit, range(4), [str(log)] * 4, cache=options())
        return client.submit(total, parts, str(log), cache=options())

    assert chain().result() == 12
    ran = lines(log)
    assert chain().result() == 12
    assert lines(log) == ran


def test_settings_of_the_client_count_wherever_a_key_is_made(client, log):
    def chain():
        parts = client.map(fit, range(2), [str(log)] * 2, cache=options())
        return client.submit(total, parts, str(log), cache=options())

    with decimal.localcontext(prec=5), client.pool(cache=options()) as pool:
        assert chain().result() == 2
        assert chain().result() == 2
        assert pool.submit(fit, 5, str(log)).result() == {"value": 10}
        assert client.submit(fit, 5, str(log), cache=options()).done()
    assert lines(log) == ["fit 0", "fit 1", "fit 5", "total"]
    assert chain().result() == 2
    assert lines(log) == ["fit 0", "fit 0", "fit 1", "fit 1", "fit 5", "total", "total"]


def test_call_with_the_result_of_a_call_without_a_key_is_found_on_the_worker(client, log):
    for _ in range(2):
        parts = [client.submit(fit, x, str(log)) for x in range(3)]
        assert client.submit(total, parts, str(log), cache=options()).result() == 6
    assert lines(log).count("total") == 1


def test_large_result_is_found_by_a_worker(client, log):
    for _ in range(2):
        future = client.submit(wide, 1, str(log), cache=options())
        assert len(future.result()) == 200_000
        del future
        time.sleep(0.2)  # the scheduler forgets the call
    assert lines(log) == ["wide 1"]


def test_failed_call_is_not_remembered(client, log):
    for _ in range(2):
        with pytest.raises(OSError, match="no data"):
            client.submit(failing, 1, str(log), cache=options()).result()
    assert lines(log) == ["failing 1"] * 2


def test_failed_call_runs_once_more_if_its_last_future_goes_meanwhile(
    client, log, monkeypatch, eventually
):
    held = [client.submit(failing, 1, str(log), cache=options())]
    assert held[0].exception()
    run_again = client._retry_now

    def run_again_and_drop_futures(futures):
        run_again(futures)
        eventually(lambda: lines(log) == ["failing 1"] * 2)
        futures.clear()
        held.clear()
        gc.collect()
        client.sync(asyncio.sleep, 0)  # the client has noticed it

    monkeypatch.setattr(client, "_retry_now", run_again_and_drop_futures)
    assert client.submit(failing, 1, str(log), cache=options()).exception()
    assert lines(log) == ["failing 1"] * 2


def test_argument_without_stable_content_is_an_error_that_names_it(client, log):
    with pytest.raises(UnstableValueError, match="argument x of"):
        client.submit(fit, threading.Lock(), str(log), cache=True)
    assert lines(log) == []


def test_calls_of_an_executor_are_remembered_by_their_workers(client, log):
    with client.pool(cache=options()) as pool:
        assert list(pool.map(fit, [1, 2], [str(log)] * 2)) == [{"value": 2}, {"value": 4}]
    with client.pool(cache=options()) as pool:
        assert list(pool.map(fit, [1, 2, 3], [str(log)] * 3))[2] == {"value": 6}
        assert pool.submit(fit, 2, str(log)).result() == {"value": 4}
        assert pool.starmap(fit, [(1, str(log)), (4, str(log))])[1] == {"value": 8}
    assert client.submit(fit, 4, str(log), cache=options()).done()
    assert lines(log) == ["fit 1", "fit 2", "fit 3", "fit 4"]


def test_nodes_of_a_graph_are_remembered(client, log):
    graph = {"a": (fit, 1, str(log)), "b": (fit, 2, str(log)), "c": (total, ["a", "b"], str(log))}
    assert client.get(graph, "c", cache=options()) == 6
    graph["d"] = (fit, "c", str(log))
    assert client.get(graph, ["d", "c"], cache=options()) == [{"value": 12}, 6]
    assert lines(log) == ["fit 1", "fit 2", "fit 6", "total"]


def test_map_of_a_function_that_cannot_be_followed_runs_all_its_calls(client, log):
    assert client.gather(client.map(locked, range(3), [str(log)] * 3, cache=options())) == [0, 1, 2]
    assert lines(log) == ["locked"] * 3


@cached(ignore=["log"])
def decorated(x, log):
    with Path(log).open("a") as file:
        file.write(f"decorated {x}\n")
    return x * 10


def test_decorated_function_is_remembered_without_being_asked(client, log):
    for _ in range(2):
        assert client.submit(decorated, 2, str(log)).result() == 20
    assert client.submit(decorated, 2, str(log), cache=False, pure=False).result() == 20
    assert lines(log).count("decorated 2") >= 1


LOCK = threading.Lock()


def locked(x, log):
    with LOCK, Path(log).open("a") as file:
        file.write("locked\n")
    return x


def test_function_that_cannot_be_followed_runs_each_time_with_one_warning(client, log, caplog):
    with caplog.at_level(logging.WARNING, "scalable"):
        for _ in range(3):
            future = client.submit(locked, 1, str(log), cache=options(), pure=False)
            assert future.result() == 1
            future.release()
    assert lines(log) == ["locked"] * 3
    assert caplog.text.count("LOCK") == 1


def test_functions_own_parameter_named_cache_is_refused_as_a_keyword(client):
    def read(cache):
        return cache

    with pytest.raises(TypeError, match="parameter 'cache' of its own"):
        client.submit(read, cache=True)


def test_damaged_result_is_computed_again(client, tmp_path, log):
    client.submit(fit, 3, str(log), cache=options()).result()
    for path in (tmp_path / "results").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            data = path.read_bytes()
            path.write_bytes(data[:-5])
    assert client.submit(fit, 3, str(log), cache=options()).result() == {"value": 6}


def test_task_with_cache_in_the_manifest_is_remembered_between_sessions(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manifest = tmp_path / "scalable.yaml"
    manifest.write_text(
        textwrap.dedent(
            """
            version: 1
            project: {name: p, local_cache: kept}
            targets: {here: {provider: local}}
            components: {model: {cpus: 1, workers: 1}, post: {cpus: 1, workers: 1}}
            tasks: {fit: {component: model, cache: true}, other: {component: model}}
            """
        )
    )
    for _ in range(2):
        with ScalableSession.from_yaml(str(manifest), target="here") as client:
            assert client.submit(fit, 3, str(log), task="fit").result() == {"value": 6}
            assert client.submit(fit, 3, str(log), task="other").result() == {"value": 6}
    assert (tmp_path / "kept").is_dir()
    assert lines(log) == ["fit 3"] * 3
    with ScalableSession.from_yaml(str(manifest), target="here") as client:
        # The function's name is the task's, in the pool of its entry, however the task is sent.
        assert client.submit(fit, 3, str(log), tag="model").result() == {"value": 6}
        assert client.gather(client.map(fit, [3], log=str(log), tag="model")) == [{"value": 6}]
        pool = client.executor(tag="model")
        assert pool.submit(fit, 3, str(log)).result() == {"value": 6}
        assert lines(log) == ["fit 3"] * 3
        assert client.submit(fit, 3, str(log), tag="post").result() == {"value": 6}
        assert client.submit(fit, 3, str(log), tag="model", cache=False).result() == {"value": 6}
        assert client.submit(fit, 3, str(log)).result() == {"value": 6}
    assert lines(log) == ["fit 3"] * 6


def test_store_of_another_user_stops_no_task(client, tmp_path, log, caplog):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (tmp_path / "results").mkdir()
    os.chown(tmp_path / "results", 65534, 65534)
    for _ in range(2):
        future = client.submit(fit, 3, str(log), cache=options())
        assert future.result() == {"value": 6}
        future.release()
    assert caplog.text.count("belongs to another user") == 1
    assert not list((tmp_path / "results").iterdir())
