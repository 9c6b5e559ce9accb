"""The run record of a session, from its plan to its outcome."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from scalable import settings
from scalable.model import DeploymentSpec, Plan
from scalable.runs import RunDirectory
from scalable.storage import size_of, without_secrets

_INTERRUPTED = 130


class SessionRecord:
    """The run directory into which a session writes its record."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    @classmethod
    def open(cls, spec: DeploymentSpec, plan: Plan, *, manifest_yaml: str) -> Self:
        """Create a run directory, or raise RunError. Report it to an enclosing ``scalable run``."""
        run = RunDirectory.create(
            spec.project_name,
            spec.target_name,
            manifest_yaml=manifest_yaml,
            manifest_lock=plan.manifest_lock,
            plan=plan.to_dict(),
            provider=spec.provider_name,
        )
        announce_run(run.path)
        return cls(run)

    def artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None,
        kind: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Record an artifact of the workflow: a file or a URL."""
        text = os.fspath(path)
        file = None if "://" in text else Path(text).resolve()
        if file is None:
            shown, size = without_secrets(text), size_of(text)
        else:
            shown, size = str(file), file.stat().st_size if file.is_file() else None
        row = {
            "name": name or shown.partition("?")[0].rstrip("/").rsplit("/", 1)[-1],
            "path" if file else "uri": shown,
            "kind": kind,
            "timestamp": time.time(),
            "bytes": size,
            "metadata": dict(metadata),
        }
        self.run.append("artifacts", row)

    def close(self, error: BaseException | None) -> None:
        """Close the run as completed, cancelled or failed, depending on the error."""
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.run.close("completed")
        elif isinstance(error, KeyboardInterrupt):
            self.run.close("cancelled", exit_code=_INTERRUPTED)
        else:
            self.run.append("failures", _workflow_failure(error))
            code = error.code if isinstance(error, SystemExit) else 1
            self.run.close(
                "failed",
                error=f"{type(error).__name__}: {_text(error)}",
                exit_code=code if isinstance(code, int) else 1,
            )


def announce_run(path: Path | None) -> None:
    """Report the path of a run to the ``scalable run`` that started this process, if any."""
    listing = os.environ.get(settings.RUN_LIST)
    if listing and path is not None:
        # That process may have exited by now. Then the list is gone.
        with suppress(FileNotFoundError), Path(listing).open("a", encoding="utf-8") as file:
            file.write(f"{path}\n")


def _text(error: BaseException) -> str:
    """Return the message of an error, even if its ``__str__`` fails."""
    lines = traceback.format_exception_only(error)
    own = next((line for line in lines if type(error).__name__ in line), lines[-1])
    return own.strip().partition(": ")[2]


def _workflow_failure(error: BaseException) -> dict[str, Any]:
    return {
        "failure_class": type(error).__name__,
        "message": _text(error),
        "timestamp": time.time(),
        "details": {
            "phase": "workflow",
            "task_id": None,
            "worker": None,
            "traceback": "".join(traceback.format_exception(error)),
        },
    }
