"""The same conversations through LangChain's trim_messages (PyPI: langchain-core).

Usage: langchain_peer.py FILE
The file holds {"budget": tokens, "conversations": [[message, ...], ...]}, each message in the
form of agent-snapshot with its tokens as `tokens`. Prints name, value and unit by line.
With {"growth": [{"budget": tokens, "messages": [...]}, ...]} instead it prints the number of
messages and the nanoseconds that a trim takes.

"""

import json
import statistics
import sys
import time

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)


def convert(message):
    text = message.get("content") or ""
    kind = message["role"]
    extra = {"tokens": message["tokens"]}
    if kind == "system":
        return SystemMessage(text, additional_kwargs=extra)
    if kind == "user":
        return HumanMessage(text, additional_kwargs=extra)
    if kind == "tool":
        (result,) = message["tool_results"]
        return ToolMessage(
            str(result["result"]),
            tool_call_id=result["tool_call_id"],
            additional_kwargs=extra,
        )
    calls = [
        {"id": call["id"], "name": call["name"], "args": call["args"]}
        for call in message.get("tool_calls", [])
    ]
    return AIMessage(text, tool_calls=calls, additional_kwargs=extra)


def count(messages):
    return sum(message.additional_kwargs["tokens"] for message in messages)


def acceptable(messages):
    """Whether both Anthropic and OpenAI would take the list."""
    spoken, waiting = False, set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            return False
        if isinstance(message, HumanMessage):
            spoken = True
        elif isinstance(message, AIMessage):
            if not spoken:
                return False
            waiting = {call["id"] for call in message.tool_calls}
    return not waiting


def trim(messages, budget, **options):
    """The kept messages, and the seconds that it took."""
    start = time.perf_counter()
    kept = trim_messages(
        messages,
        max_tokens=budget,
        token_counter=count,
        strategy="last",
        include_system=True,
        **options,
    )
    return kept, time.perf_counter() - start


def growth(lists):
    for entry in lists:
        messages = [convert(m) for m in entry["messages"]]
        took = statistics.median(trim(messages, entry["budget"])[1] for _ in range(5))
        print(f"{len(messages)}\t{took * 1e9}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    if "growth" in data:
        growth(data["growth"])
        return
    budget = data["budget"]
    conversations = [[convert(m) for m in c] for c in data["conversations"]]
    for name, options in [
        ("default", {}),
        ("start_on=human", {"start_on": "human"}),
    ]:
        refused = empty = used = 0
        took = 0
        for messages in conversations:
            kept, seconds = trim(messages, budget, **options)
            took += seconds
            if all(isinstance(message, SystemMessage) for message in kept):
                empty += 1
            elif not acceptable(kept):
                refused += 1
            used += count(kept) / budget
        total = len(conversations)
        print(f"{name}, refused by a provider\t{100 * refused / total}\t%")
        print(f"{name}, nothing left but the prompt\t{100 * empty / total}\t%")
        print(f"{name}, budget used\t{100 * used / total}\t%")
        print(f"{name}, time for a trim\t{took / total * 1e6}\tµs")


main()
