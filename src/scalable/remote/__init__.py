"""All that remote places share, in the processes that make and manage their clusters.

The scheduler of such a cluster runs in the place, and no files are shared. Not here: what one place
is asked and answers, which stands in its provider's folder.
"""
