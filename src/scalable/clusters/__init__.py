"""Life of clusters: creating, recording, finding, scaling and deleting them.
``session`` handles the manifest, the plan and the client. ``providers`` start workers on a backend.
"""
