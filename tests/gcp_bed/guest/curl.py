"""`curl` on a machine of the test bed: leads Google's names to the test bed, then runs curl."""

import os
import re
import sys


def here(word):
    """Return an argument with the test bed's addresses in the place of Google's."""
    metadata = os.environ.get("GCE_METADATA_HOST", "")
    word = re.sub(r"^https?://(metadata\.google\.internal\.?|169\.254\.169\.254|metadata)(?=/|$)",
                  f"http://{metadata}", word)  # fmt: skip
    endpoint = os.environ.get("SCALABLE_GCP_ENDPOINT", "")
    return re.sub(r"^https://[a-z0-9-]+\.googleapis\.com(?=/|$)", endpoint, word)


if __name__ == "__main__":
    words = [here(word) for word in sys.argv[1:]]
    os.execv("/usr/bin/curl", ["curl", *words])
