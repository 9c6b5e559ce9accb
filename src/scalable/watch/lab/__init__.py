"""Clusters in JupyterLab: a Jupyter server extension that provides data for Dask's sidebar.

:func:`lab_cluster` starts clusters for its "+NEW" button, and for dask-ctl (docs/jupyter.md). The
hooks are called by Jupyter's server, even if the extra ``jupyter`` is not installed.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.watch.lab.sidebar import lab_cluster, show

__all__ = ["lab_cluster", "show"]

__getattr__, __dir__ = exported_lazily(
    __name__, {"scalable.watch.lab.sidebar": ("lab_cluster", "show")}
)

EXTRA = "pip install dask-labextension"
#: Packages of the extra that the sidebar needs.
NEEDED = ("dask_labextension", "jupyter_server_proxy")


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def missing() -> list[str]:
    """Return the names of the extra's required packages that are missing."""
    return [name for name in NEEDED if find_spec(name) is None]


def _link_jupyter_server_extension(app: Any) -> None:  # noqa: ARG001 - Jupyter's signature
    """Install the handlers before Jupyter loads Dask's extension."""
    if not missing():
        from scalable.watch.lab.handlers import install

        install()


def _load_jupyter_server_extension(app: Any) -> None:
    """Start watching the clusters, or log which package is missing."""
    absent = missing()
    if absent:
        app.log.info("scalable: the sidebar shows no clusters without %s: %s", absent[0], EXTRA)
        return
    from scalable.watch.lab.handlers import start

    start(app.web_app.settings)
    fault = fault_of_loader()
    if fault is not None:
        app.log.warning("scalable: %s", fault)


def fault_of_loader() -> str | None:
    """Return why notebook code from the sidebar would not connect, or None."""
    import dask

    from scalable.clusters.connecting import LOADER, LOADER_SETTING, LOADER_VARIABLE

    found = dask.config.get(LOADER_SETTING, None)
    if found == LOADER:
        return None
    if found is not None:
        return f"Dask's configuration finds credentials with {found}, not with {LOADER}"
    return (
        "notebooks cannot connect with the code of the sidebar, because Dask's configuration does "
        f"not say how to find credentials: set {LOADER_VARIABLE}={LOADER} before Jupyter starts"
    )
