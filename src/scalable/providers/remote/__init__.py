"""Common parts of remote backends, in the processes that create and manage their clusters.

The scheduler runs in the backend, and no files are shared. Requests to a backend are in its
provider's package.
"""
