"""The engine: pools of tagged workers on one Dask scheduler, and the client that routes by tag.

Dask's own Scheduler, Worker, Security and Client, extended through plug-ins and subclassing. Not in
here: how a place starts a worker (``providers``), what a manifest says (``manifest``), what is
decided about counts (``planning``, ``scaling``), where runs are stored (``telemetry``).
"""
