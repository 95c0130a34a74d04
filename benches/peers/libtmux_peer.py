"""The same work with libtmux (PyPI): send-keys, then capture-pane until the answer is seen.

Usage: libtmux_peer.py SOCKET
The panes run the replier of the bench. Its answer to `wait MICROSECONDS NUMBER` is
`at NANOSECONDS NUMBER BENCH OK`.
"""

import os
import sys
import time

import turns

try:
    import libtmux
except ImportError:
    turns.missing("libtmux")

MARKER = "BENCH OK"
server = libtmux.Server(socket_path=sys.argv[1])


def talk(pane, microseconds, number, interval):
    pane.send_keys(f"wait {microseconds} {number}", enter=True, suppress_history=False)
    while True:
        for line in pane.capture_pane():
            if line.endswith(f" {number} {MARKER}"):
                return int(line.split("at ")[-1].split()[0])
        time.sleep(interval)


def ask(microseconds, number, interval):
    """Time in nanoseconds from the print of the marker until it is seen."""
    printed = talk(server.panes[0], microseconds, number, float(interval))
    return time.monotonic_ns() - printed


def trips(number, seconds):
    """The number of round trips without a pause, and their time in seconds."""
    pane, count, start = server.panes[0], 0, time.monotonic()
    while time.monotonic() - start < float(seconds):
        talk(pane, 0, f"{number}-{count}", 0)
        count += 1
    return f"{count} {time.monotonic() - start}"


def look(seconds):
    """The share of a core, in percent, of polling all panes every 500 ms."""
    panes = server.panes
    before, start = sum(os.times()[:4]), time.monotonic()
    while time.monotonic() - start < float(seconds):
        round_start = time.monotonic()
        for pane in panes:
            pane.capture_pane()
        time.sleep(max(0.0, 0.5 - (time.monotonic() - round_start)))
    return (sum(os.times()[:4]) - before) / (time.monotonic() - start) * 100


turns.serve({"ask": ask, "trips": trips, "look": look})
