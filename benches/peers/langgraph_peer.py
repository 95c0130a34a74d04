"""LangGraph's SqliteSaver doing what our growth bench does: one checkpoint for each tick.

pip install langgraph-checkpoint-sqlite; then: python3 langgraph_peer.py [ticks]
Prints `name<TAB>value<TAB>unit` lines.
"""

import os
import statistics
import sys
import tempfile
import time

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

ticks = int(sys.argv[1]) if len(sys.argv) > 1 else 1000

with tempfile.TemporaryDirectory(dir=".") as folder:
    path = os.path.join(folder, "langgraph.db")
    with SqliteSaver.from_conn_string(path) as saver:
        config = {"configurable": {"thread_id": "worker_007", "checkpoint_ns": ""}}
        messages, times = [], []
        start = time.perf_counter()
        for tick in range(1, ticks + 1):
            messages.append({"role": "user", "content": "0123456789abcdef" * 64})
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": list(messages)}
            checkpoint["channel_versions"] = {"messages": tick}
            before = time.perf_counter()
            config = saver.put(config, checkpoint, {"step": tick}, {"messages": tick})
            times.append(time.perf_counter() - before)
        total = time.perf_counter() - start
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    window = max(ticks // 20, 1)
    first = statistics.median(times[:window])
    last = statistics.median(times[-window:])
    print(f"LangGraph SqliteSaver, {ticks} ticks: last saves / first\t{last / first:.3f}\ttimes")
    print(f"LangGraph SqliteSaver, {ticks} ticks: total\t{total:.3f}\ts")
    print(f"LangGraph SqliteSaver, {ticks} ticks: on disk\t{size / 1e6:.3f}\tMB")
