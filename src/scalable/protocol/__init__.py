"""Names, messages, rules and credentials that several kinds of processes share."""
