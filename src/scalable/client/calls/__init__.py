"""Executors: the backlog of many calls in the client, sent in bundles, answered one by one."""
