"""The same work by libtmux (PyPI): the specification's polling every 500 ms, and its fastest pace.

Usage: libtmux_peer.py SOCKET PANE ROUNDS
The pane runs the bench's replier, which answers `wait MICROSECONDS NUMBER`
by `at NANOSECONDS NUMBER BENCH OK`.
"""

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


def main():
    socket, pane_id, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    server = libtmux.Server(socket_path=socket)
    pane = next(p for p in server.panes if p.pane_id == pane_id)
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


main()
