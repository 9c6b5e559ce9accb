"""Overviews of clusters as lines, and as tables whose rows can be sorted and filtered.

Pure: used by ``scalable top`` and progress displays, with numbers of :mod:`scalable.spec.overview`.
"""
