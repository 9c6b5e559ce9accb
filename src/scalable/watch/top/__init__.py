"""``scalable top``: a terminal application, which needs textual (the extra ``tui``)."""
