"""LangChain's trim_messages (PyPI: langchain-core) on the conversations of the bench.

Usage: langchain_peer.py FILE
The file contains [{"budget": tokens, "messages": [message, ...]}, ...]. A message has the form of
agent-snapshot with its token count as `tokens`, so that this program counts nothing.
"""

import json
import sys
import time

import turns

try:
    from langchain_core.messages import (
        AIMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
        trim_messages,
    )
except ImportError:
    turns.missing("langchain-core")


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
    """Whether both Anthropic and OpenAI accept the list."""
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


def trimmed(number, start_on):
    """The kept messages of a list, and the time of the trim in nanoseconds."""
    messages, budget = lists[int(number)]
    options = {"start_on": start_on} if start_on else {}
    start = time.perf_counter_ns()
    kept = trim_messages(
        messages,
        max_tokens=budget,
        token_counter=count,
        strategy="last",
        include_system=True,
        **options,
    )
    return kept, time.perf_counter_ns() - start


def trim(number, start_on=None):
    return trimmed(number, start_on)[1]


def judge(start_on=None):
    """In percent of all lists: refused lists, lists with only the prompt, used part of the budget."""
    refused = empty = used = 0
    for number, (_, budget) in enumerate(lists):
        kept, _ = trimmed(number, start_on)
        if all(isinstance(message, SystemMessage) for message in kept):
            empty += 1
        elif not acceptable(kept):
            refused += 1
        used += count(kept) / budget
    return " ".join(str(100 * n / len(lists)) for n in (refused, empty, used))


with open(sys.argv[1], encoding="utf-8") as file:
    lists = [([convert(m) for m in entry["messages"]], entry["budget"]) for entry in json.load(file)]
turns.serve({"trim": trim, "judge": judge})
