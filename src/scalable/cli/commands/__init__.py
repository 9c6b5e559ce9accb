"""One file for each verb, with a click command called ``command``.

Their first lines are imported whenever help is shown: what is heavy is imported inside the command.
"""
