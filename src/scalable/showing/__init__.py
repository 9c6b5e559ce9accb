"""Overviews of clusters as text: lines, and tables whose rows can be sorted and filtered.

The terminal's surfaces share it: ``scalable top``, its ``--once``, and displays of progress. It is
pure, asks no scheduler, and computes no numbers: they stand in :mod:`scalable.spec.overview`.
"""
