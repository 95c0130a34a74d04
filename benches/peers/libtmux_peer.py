"""The same work by libtmux (PyPI): the specification's polling every 500 ms, and its fastest pace.

Usage: libtmux_peer.py SOCKET ask PANE ROUNDS
       libtmux_peer.py SOCKET idle SECONDS
The panes run the bench's replier, which answers `wait MICROSECONDS NUMBER`
by `at NANOSECONDS NUMBER BENCH OK`. `idle` looks at all panes every 500 ms and
prints the share of a core, in percent, that this took.
"""

import os
import random
import statistics
import sys
import time

import libtmux

MARKER = "BENCH OK"


def ask(pane, message, number, interval):
    pane.send_keys(message, enter=True, suppress_history=False)
    while True:
        for line in pane.capture_pane():
            if line.endswith(f" {number} {MARKER}"):
                return int(line.split("at ")[-1].split()[0])
        time.sleep(interval)


def asking(pane, rounds):
    latencies = []
    for i in range(rounds):
        number = 2_000_000 + i
        printed = ask(pane, f"wait {random.randrange(500_000)} {number}", number, 0.5)
        latencies.append((time.monotonic_ns() - printed) / 1e6)
    print(f"polling, marker printed until seen, median\t{statistics.median(latencies)}\tms")
    count, start = 0, time.monotonic()
    while time.monotonic() - start < 2 and count < rounds * 50:
        count += 1
        number = 3_000_000 + count
        ask(pane, f"wait 0 {number}", number, 0)
    print(f"round trips a second, polling without a pause\t{count / (time.monotonic() - start)}\t1/s")


def looking(panes, seconds):
    before, start = sum(os.times()[:4]), time.monotonic()
    while time.monotonic() - start < seconds:
        look = time.monotonic()
        for pane in panes:
            pane.capture_pane()
        time.sleep(max(0.0, 0.5 - (time.monotonic() - look)))
    print((sum(os.times()[:4]) - before) / (time.monotonic() - start) * 100)


def main():
    socket, work = sys.argv[1], sys.argv[2]
    panes = libtmux.Server(socket_path=socket).panes
    if work == "ask":
        pane = next(p for p in panes if p.pane_id == sys.argv[3])
        asking(pane, int(sys.argv[4]))
    else:
        looking(panes, float(sys.argv[3]))


main()
