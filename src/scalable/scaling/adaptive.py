"""The scaler that turns load into decisions."""

from __future__ import annotations

from typing import Any


class AdaptiveScaler:
    """Not available in this version: making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "AdaptiveScaler is not available in this version; "
            "cluster.adapt(tag, minimum, maximum) follows the load of one pool"
        )
