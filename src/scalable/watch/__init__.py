"""Readers of the overview: dashboard, ``top``, JupyterLab, metrics."""
