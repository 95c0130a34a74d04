"""How a peer takes turns with ours: it says `ready`, and then answers each line with a line."""

import sys


def missing(package):
    """Ends a peer whose package is not installed."""
    print(f"missing {package}", flush=True)
    sys.exit()


def serve(requests):
    """Answers requests, each the name of a function and its arguments, until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, *args = line.split()
        print(requests[name](*args), flush=True)
