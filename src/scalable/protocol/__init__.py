"""Names, messages, rules and credentials shared by several kinds of processes."""
