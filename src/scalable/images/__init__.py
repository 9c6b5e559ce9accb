"""Images for workers: a Dockerfile for a project's requirements, and its build.

The modules `requirements` and `render` do no I/O. `sources` reads the project and the installed
packages, `package` makes a wheel of this package, and `build` runs docker or podman.

The command lines that start workers in an image are in ``containers``.
"""
