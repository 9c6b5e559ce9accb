"""The command line: ``scalable validate | plan | run | report | init | schema``.

Every verb is a file in ``commands`` that asks the rooms below and returns what they say; ``output``
alone prints. Nothing is decided here, and nothing heavy is imported before a verb needs it.
"""
