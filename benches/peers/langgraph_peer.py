"""LangGraph's SqliteSaver doing what our growth bench does: one checkpoint for each tick.

pip install langgraph-checkpoint-sqlite; then: python3 langgraph_peer.py [ticks [size ...]]
Prints `name<TAB>value<TAB>unit` lines, and for each size in messages what a save and a load
take there: `save<TAB>size<TAB>nanoseconds`.
"""

import os
import statistics
import sys
import tempfile
import time

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

ticks = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
sizes = [int(size) for size in sys.argv[2:]]

message = {"role": "user", "content": "0123456789abcdef" * 64}


class Thread:
    """One conversation in a database of its own."""

    def __init__(self, saver):
        self.saver = saver
        self.config = {"configurable": {"thread_id": "worker_007", "checkpoint_ns": ""}}
        # As durable as the others: a checkpoint is on disk when `put` returns.
        saver.setup()
        saver.conn.execute("PRAGMA synchronous = FULL")
        self.messages = []

    def tick(self):
        """Adds a message and saves: the seconds that the save took."""
        self.messages.append(dict(message))
        tick = len(self.messages)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": list(self.messages)}
        checkpoint["channel_versions"] = {"messages": tick}
        before = time.perf_counter()
        self.config = self.saver.put(self.config, checkpoint, {"step": tick}, {"messages": tick})
        return time.perf_counter() - before

    def load(self):
        before = time.perf_counter()
        found = self.saver.get_tuple({"configurable": {"thread_id": "worker_007", "checkpoint_ns": ""}})
        took = time.perf_counter() - before
        assert len(found.checkpoint["channel_values"]["messages"]) == len(self.messages)
        return took


with tempfile.TemporaryDirectory(dir=".") as folder:
    path = os.path.join(folder, "langgraph.db")
    with SqliteSaver.from_conn_string(path) as saver:
        thread = Thread(saver)
        start = time.perf_counter()
        times = [thread.tick() for _ in range(ticks)]
        total = time.perf_counter() - start
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    window = max(ticks // 20, 1)
    first = statistics.median(times[:window])
    last = statistics.median(times[-window:])
    name = f"LangGraph SqliteSaver, every checkpoint kept, {ticks} ticks"
    print(f"{name}: last saves / first\t{last / first:.3f}\ttimes")
    print(f"{name}: total\t{total:.3f}\ts")
    print(f"{name}: on disk\t{size / 1e6:.3f}\tMB")

for size in sizes:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with SqliteSaver.from_conn_string(os.path.join(folder, "langgraph.db")) as saver:
            thread = Thread(saver)
            thread.messages = [dict(message) for _ in range(max(size - 7, 0))]
            saved = statistics.median(thread.tick() for _ in range(7))
            loaded = statistics.median(thread.load() for _ in range(7))
            print(f"save\t{size}\t{saved * 1e9:.0f}")
            print(f"load\t{size}\t{loaded * 1e9:.0f}")
