"""Reports of runs, built from their records alone, as plain text, as JSON, and as an HTML page."""
