"""Server nodes whose local directory is private, for our classes and those of others."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
from distributed.core import Server

from scalable.protocol.private_directory import PrivateDirectory


class PrivateNode:
    """A server node with a private local directory, made in ``local_directory`` if given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        directory = PrivateDirectory(kwargs.pop("local_directory", None))
        self._private_directory = directory
        try:
            with ExitStack() as stack:
                # No other process uses the directory, so that Dask need not lock or purge it.
                stack.enter_context(dask.config.set({"distributed.worker.use-file-locking": False}))
                if _takes_directory(type(self)):
                    kwargs["local_directory"] = str(directory.path)
                else:
                    place = {"temporary-directory": str(directory.path)}
                    stack.enter_context(dask.config.set(place))
                super().__init__(*args, **kwargs)
            # Dask's directory inside is removed with this one. Its own removal may come later, or
            # in a fork, and would print that the directory does not exist.
            if (inside := getattr(self, "_workdir", None)) is not None:
                inside.release()
                Path(inside.dir_path).mkdir(mode=0o700)
                vars(self).update(_workdir=None)
        except BaseException:
            directory.release()
            raise

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().close(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._private_directory.release()


def private_class(cls: type[Any]) -> type[Any]:
    """Return a class of Dask's nodes, or a subclass of it whose directory is private."""
    if not issubclass(cls, Server) or issubclass(cls, PrivateNode):
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (PrivateNode, cls), names)


def _takes_directory(cls: type[Any]) -> bool:
    """Return whether the constructors of a class pass ``local_directory`` on."""
    for each in cls.__mro__:
        if each is PrivateNode or "__init__" not in vars(each):
            continue
        parameters = inspect.signature(vars(each)["__init__"]).parameters
        if "local_directory" in parameters:
            return True
        # SchedulerState is a sibling of Server, not its base.
        ends = not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if ends and issubclass(each, Server):
            return False
    return False
