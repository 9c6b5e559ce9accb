"""Pickling by value that keeps the files of code, so that tracebacks show the user's lines.

Since version 3.1, cloudpickle replaces the file of each code object. Only messages between the
processes of a cluster keep it: Dask's tokens, and pickles of users, do not depend on files.
"""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
from distributed.protocol import pickle


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    return _code_in_file, (code.co_filename, *_reduce_without_file(code))


def _code_in_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)


_reduce_without_file = cloudpickle.Pickler.dispatch_table[CodeType]


class ByValuePickler(cloudpickle.Pickler):
    """Pickler of objects that another process cannot import."""

    dispatch_table = ChainMap[Any, Any](  # noqa: RUF012 - pickle's own
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )


def _dumps(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    ByValuePickler(file, **options).dump(value)
    return file.getvalue()


def keep_files_in_messages() -> None:
    """Make Dask's messages use :class:`ByValuePickler`."""
    keeping = ModuleType(cloudpickle.__name__)
    vars(keeping).update(vars(cloudpickle), dumps=_dumps)
    vars(pickle).update(cloudpickle=keeping)
