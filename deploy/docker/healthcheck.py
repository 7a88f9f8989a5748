"""Is the Penstock of this container alive? Asks /livez, and exits with 0 or 1: for images without curl.

Usage: python healthcheck.py [PORT]

Without a port, that of PENSTOCK_METRICS_ADDRESS, which is a worker's; a monitor's has to be given.
"""

import os
import sys
import urllib.request

PORT = 9464
TIMEOUT_SECONDS = 4.0  # less than the platform waits for us


def main() -> None:
    address = os.environ.get("PENSTOCK_METRICS_ADDRESS", f":{PORT}")
    port = sys.argv[1] if len(sys.argv) > 1 else address.rpartition(":")[2]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is here, whatever proxy there is
    try:
        with opener.open(f"http://127.0.0.1:{port}/livez", timeout=TIMEOUT_SECONDS) as answer:
            answer.read(4096)
    except OSError as error:  # an answer of 503 is one, too
        sys.exit(f"not alive: {error}")


if __name__ == "__main__":
    main()
