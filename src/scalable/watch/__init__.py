"""Programs that show a cluster's overview: dashboard, ``top``, JupyterLab, metrics."""
