"""LangGraph's SqliteSaver (PyPI: langgraph-checkpoint-sqlite): one checkpoint for each tick.

Usage: langgraph_peer.py FOLDER FILE
The folder is empty and on the same disk as our data. The file contains a JSON list of texts, which
are the messages, repeated as often as necessary.
"""

import json
import os
import sys
import time

import turns

try:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver
except ImportError:
    turns.missing("langgraph-checkpoint-sqlite")

LATEST = {"configurable": {"thread_id": "worker_007", "checkpoint_ns": ""}}
folder = sys.argv[1]
with open(sys.argv[2], encoding="utf-8") as file:
    texts = json.load(file)
messages = []
config = LATEST


def grow(size):
    """Adds messages without a save. Each save writes all messages, so no earlier save is needed."""
    while len(messages) < int(size):
        messages.append({"role": "user", "content": texts[len(messages) % len(texts)]})
    return len(messages)


def save():
    """Time in nanoseconds of a save with one more message."""
    global config
    tick = grow(len(messages) + 1)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": list(messages)}
    checkpoint["channel_versions"] = {"messages": tick}
    before = time.perf_counter_ns()
    config = saver.put(config, checkpoint, {"step": tick}, {"messages": tick})
    return time.perf_counter_ns() - before


def load():
    before = time.perf_counter_ns()
    found = saver.get_tuple(LATEST)
    took = time.perf_counter_ns() - before
    assert len(found.checkpoint["channel_values"]["messages"]) == len(messages)
    return took


def size():
    """Bytes on disk."""
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


with SqliteSaver.from_conn_string(os.path.join(folder, "langgraph.db")) as saver:
    saver.setup()
    # The durability of the other contenders: a checkpoint is on disk when `put` returns.
    saver.conn.execute("PRAGMA synchronous = FULL")
    turns.serve({"grow": grow, "save": save, "load": load, "size": size})
