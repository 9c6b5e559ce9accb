"""Choice of a cluster's form, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.providers.kubernetes.dask_operator import OperatorForm
from scalable.providers.kubernetes.form import Form, PodForm


def form_of(options: Mapping[str, Any]) -> Form:
    """Return the form of the clusters of a target with these options."""
    return OperatorForm() if options["operator"] else PodForm()
