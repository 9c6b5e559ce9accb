"""Many short calls: bundled in the client, run one after another on a slot, answered one by one.

A bundle is one Dask task, so that scheduling, TLS, tags, records and scale-down are those of every
other call. ``messages`` turns calls into bytes and back, ``bundles`` runs them on a worker,
``relay`` sits beside the scheduler and passes answers on, ``dispatcher`` keeps the backlog in the
client, and ``pool`` is what users see.
"""
