"""What the sidebar relies on of Jupyter's server, Dask's extension and jupyter-server-proxy."""

import asyncio
import importlib
import inspect
import json
import logging
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalable.clusters.connecting import LOADER, LOADER_SETTING
from scalable.model import ClusterStatus
from scalable.watch import lab as extension

ROOT = Path(__file__).parents[2]
for package in ("dask_labextension", "jupyter_server", "jupyter_server_proxy"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def labextension():
    """Import Dask's extension, which wants a running event loop."""

    async def load():
        return importlib.import_module("dask_labextension")

    return asyncio.run(load())


@pytest.fixture
def handlers(labextension, monkeypatch):
    for name in ("DaskClusterHandler", "DaskDashboardHandler"):
        monkeypatch.setattr(labextension, name, getattr(labextension, name))
    handlers = importlib.import_module("scalable.watch.lab.handlers")
    handlers.install()
    return handlers


def test_dasks_extension_serves_its_addresses_with_our_handlers(labextension, handlers):
    routes = []
    web_app = SimpleNamespace(
        settings={"base_url": "/user/me/"}, add_handlers=lambda host, made: routes.extend(made)
    )
    labextension.load_jupyter_server_extension(SimpleNamespace(web_app=web_app))
    served = dict(routes)
    lists = [p for p, handler in served.items() if handler is handlers.ClusterHandler]
    pages = [p for p, handler in served.items() if handler is handlers.PageHandler]
    assert len(lists) == 2
    assert all(p.startswith("/user/me/dask/clusters/") for p in lists)
    assert len(pages) == 1
    assert pages[0].startswith("/user/me/dask/dashboard/")
    assert "proxied_path" in pages[0]


def test_rows_have_the_keys_of_dasks_rows(labextension, handlers):
    from dask_labextension.manager import make_cluster_model

    from scalable.watch.lab.sidebar import row

    info = {"workers": {"w": {"nthreads": 2, "memory_limit": 5}}}
    cluster = SimpleNamespace(scheduler_info=info, scheduler_address="a", dashboard_link="")
    bounds = SimpleNamespace(minimum=1, maximum=2)
    theirs = make_cluster_model("i", "n", cluster, bounds)
    status = ClusterStatus("n", "i", "p", "t", "running", "a", adaptive={"x": (1, 2)})
    ours = row(status, {}, "/")
    assert ours.keys() == theirs.keys() - {"adapt"}


def test_handlers_override_methods_that_are_there(handlers):
    from dask_labextension.clusterhandler import DaskClusterHandler
    from dask_labextension.dashboardhandler import DaskDashboardHandler
    from jupyter_server_proxy.handlers import ProxyHandler

    for method in ("get", "put", "delete", "patch"):
        assert method in vars(DaskClusterHandler)
    verbs = ("http_get", "open", "post", "put", "delete", "head", "patch", "options")
    for method in verbs:
        names = list(inspect.signature(vars(DaskDashboardHandler)[method]).parameters)
        assert names == ["self", "cluster_id", "proxied_path"]
    for method in (verb for verb in verbs if verb != "open"):
        source = inspect.getsource(vars(DaskDashboardHandler)[method])
        assert "self.proxy(cluster_id, proxied_path)" in source
    assert list(inspect.signature(ProxyHandler.proxy).parameters)[1:] == [
        "host", "port", "proxied_path",
    ]  # fmt: skip
    assert list(inspect.signature(ProxyHandler.get_client_uri).parameters)[1:] == [
        "protocol", "host", "port", "proxied_path",
    ]  # fmt: skip
    source = inspect.getsource(ProxyHandler)
    used = ("self.host_allowlist", "self.rewrite_response", "self.proxy_base", "self.ws.close()")
    used += ("self._requested_subprotocols", "self.proxy_request_headers()")
    used += ("self.proxy_request_options()", "def _record_activity(self)")
    assert [name for name in used if name not in source] == []


def test_the_list_and_the_start_of_dasks_clusters_are_there(handlers):
    assert handlers.manager.list_clusters() == []
    assert inspect.iscoroutinefunction(handlers.manager.start_cluster)


def test_jupyter_finds_the_hooks_of_the_extension():
    from jupyter_server.extension.manager import ExtensionPackage

    package = ExtensionPackage(name="scalable.watch.lab", enabled=True)
    assert package.validate()
    (point,) = package.extension_points.values()
    assert point._get_linker() is extension._link_jupyter_server_extension
    assert point._get_loader() is extension._load_jupyter_server_extension


def test_without_the_extra_the_extension_says_so_and_does_nothing(monkeypatch, caplog):
    monkeypatch.setattr(extension, "NEEDED", ("no_such_package",))
    app = SimpleNamespace(log=logging.getLogger("jupyter"))
    with caplog.at_level("INFO"):
        extension._link_jupyter_server_extension(app)
        extension._load_jupyter_server_extension(app)
    assert "no_such_package: pip install dask-labextension" in caplog.text


# What an installation puts into place -------------------------------------------------------------


def test_the_wheel_enables_the_extension_and_names_the_loader():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"]["shared-data"] == {"data/etc": "etc"}
    folder = ROOT / "data" / "etc"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    jupyter, dask = "jupyter/jupyter_server_config.d/scalable.json", "dask/scalable.yaml"
    assert files == {jupyter, dask}
    enabled = json.loads((folder / jupyter).read_text())["ServerApp"]["jpserver_extensions"]
    assert enabled == {"scalable.watch.lab": True}
    from dask.config import collect, get

    read = collect(paths=[str(folder / "dask")], env={})
    assert get(LOADER_SETTING, config=read) == LOADER


def test_a_missing_loader_is_told(monkeypatch):
    import dask

    with dask.config.set({LOADER_SETTING: LOADER}):
        assert extension.fault_of_loader() is None
    with dask.config.set({LOADER_SETTING: None}):
        assert "set DASK_DISTRIBUTED__CLIENT__SECURITY_LOADER=" in extension.fault_of_loader()
    with dask.config.set({LOADER_SETTING: "site.load"}):
        assert "finds credentials with site.load" in extension.fault_of_loader()
