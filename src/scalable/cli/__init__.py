"""The command line: each command is a module in ``commands``, and only ``output`` prints.
Nothing heavy is imported before a command needs it.
"""
