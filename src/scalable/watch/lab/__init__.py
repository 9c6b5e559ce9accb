"""Clusters in JupyterLab: a Jupyter server extension that provides data for Dask's sidebar.

:func:`lab_cluster` starts clusters for its "+NEW" button, and for dask-ctl (docs/jupyter.md).
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily
from scalable.watch.lab.extension import (
    _jupyter_server_extension_points,
    _link_jupyter_server_extension,
    _load_jupyter_server_extension,
)

if TYPE_CHECKING:
    from scalable.watch.lab.factory import lab_cluster
    from scalable.watch.lab.sidebar import show

__all__ = [
    "_jupyter_server_extension_points",
    "_link_jupyter_server_extension",
    "_load_jupyter_server_extension",
    "lab_cluster",
    "show",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.watch.lab.factory": ("lab_cluster",),
        "scalable.watch.lab.sidebar": ("show",),
    },
)
