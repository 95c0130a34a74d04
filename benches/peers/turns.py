"""The protocol between a peer and the bench: the peer prints `ready`, then answers each line."""

import sys


def missing(package):
    """Ends the peer because its package is not installed."""
    print(f"missing {package}", flush=True)
    sys.exit()


def serve(requests):
    """Answers requests until the input ends. A request is a function's name and its arguments."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, *args = line.split()
        print(requests[name](*args), flush=True)
