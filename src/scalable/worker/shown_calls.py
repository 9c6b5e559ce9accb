"""Answers to questions about the calls of this worker: arguments as text, and last output."""

from __future__ import annotations

from typing import Any

from distributed import Worker

from scalable import settings
from scalable.protocol.dask_seams.worker import task_of
from scalable.protocol.described_failures import recent_output
from scalable.protocol.shown_values import shown_arguments
from scalable.worker.bundles import running_bundle


def shown_call(worker: Worker, key: Any = None) -> dict[str, Any]:
    """Return what is known here of a call, without running code of its classes.

    Parameters
    ----------
    worker
        The Dask worker.
    key
        Key of the call; None for the output alone.

    Returns
    -------
    dict
        ``output``: last lines that the process printed, or None; of a call that runs also
        ``arguments`` (None if they are not to be shown), and of a bundle ``position`` and
        ``since_s`` of the call that runs.
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
