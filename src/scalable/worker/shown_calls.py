"""Answers about the tasks of this worker: arguments as strings, and last output."""

from __future__ import annotations

from typing import Any

from distributed import Worker

from scalable import settings
from scalable.protocol.dask_seams.worker import task_of
from scalable.protocol.described_failures import recent_output
from scalable.protocol.shown_values import shown_arguments
from scalable.worker.bundles import running_bundle


def shown_call(worker: Worker, key: Any = None) -> dict[str, Any]:
    """Return what this worker has about a task, without running code of its classes.

    ``output`` contains the last lines that the process printed, or None. A running task also has
    ``arguments``, unless they are not to be shown. A bundle also has ``position`` and ``since_s``
    of its running task. Without a key, only ``output`` is returned.
    """
    answer: dict[str, Any] = {"output": recent_output()}
    if key is None:
        return answer
    given = None
    if (bundle := running_bundle(str(key))) is not None:
        answer["position"], answer["since_s"], given = bundle.running_call()
    elif (task := task_of(worker, key)) is not None:
        given = getattr(task.run_spec, "given", lambda: None)()
    if given is not None and settings.records_arguments():
        answer["arguments"] = shown_arguments(*given)
    return answer
