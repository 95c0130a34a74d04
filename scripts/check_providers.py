"""Checks requests against the types of the providers' own packages.

Reads lines {"provider": ..., "request": ...} from the file that is the argument. Prints the number
of requests for each provider, and fails at the first twenty that a type refuses.

The packages of Anthropic and OpenAI describe requests as TypedDicts, which nothing checks at run
time. `check` compares a value with such a type: required and unknown keys, literals, unions, lists.
The package of Gemini has pydantic models that forbid unknown keys.
"""

import collections
import collections.abc
import functools
import json
import sys
import types
import typing

import typing_extensions
from anthropic.types import MessageParam, TextBlockParam
from google.genai import types as gemini
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam

# Servers that offer the API of OpenAI return this field and want it back; OpenAI does not.
COMPATIBLE_SERVERS = {"reasoning_content"}
# An item of the Responses API that is kept as it was received.
UNCHECKED_ITEMS = {"web_search_call"}


@functools.cache
def fields(kind):
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    required = set()
    plain = {}
    for name, hint in hints.items():
        origin = typing_extensions.get_origin(hint)
        while origin in (typing_extensions.Required, typing_extensions.NotRequired, typing.Required, typing.NotRequired, typing.Annotated):
            if origin in (typing_extensions.Required, typing.Required):
                required.add(name)
            hint = typing_extensions.get_args(hint)[0]
            origin = typing_extensions.get_origin(hint)
        plain[name] = hint
    return plain, required | set(kind.__required_keys__)


def check(value, kind, path):
    """The reason why `value` is not of the type `kind`, or None."""
    origin = typing_extensions.get_origin(kind)
    arguments = typing_extensions.get_args(kind)
    if kind in (typing.Any, object):
        return None
    if kind is None or kind is type(None):
        return None if value is None else f"{path} is not null"
    if origin in (typing_extensions.Required, typing.Required, typing.Annotated):
        return check(value, arguments[0], path)
    if origin in (typing.Union, types.UnionType):
        reasons = [check(value, argument, path) for argument in arguments]
        if None in reasons:
            return None
        # The reason for the member with the same `type` or `role` says most.
        return max(reasons, key=len) if len(reasons) == 1 else f"{path}: " + " | ".join(reasons)[:600]
    if origin in (typing.Literal, typing_extensions.Literal):
        return None if value in arguments else f"{path} is {value!r}"
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        if not isinstance(value, list):
            return f"{path} is not a list"
        for index, entry in enumerate(value):
            reason = check(entry, arguments[0], f"{path}[{index}]")
            if reason:
                return reason
        return None
    if origin in (dict, collections.abc.Mapping):
        return None if isinstance(value, dict) else f"{path} is not an object"
    if typing_extensions.is_typeddict(kind):
        if not isinstance(value, dict):
            return f"{path} is not an object"
        plain, required = fields(kind)
        for name in ("type", "role"):
            # Most members of a union differ here.
            if name in value and name in plain and typing_extensions.get_origin(plain[name]) is typing.Literal:
                if value[name] not in typing_extensions.get_args(plain[name]):
                    return f"{path}.{name}"
        missing = required - value.keys()
        unknown = value.keys() - plain.keys()
        if missing or unknown:
            return f"{path}: {kind.__name__} misses {sorted(missing)}, does not know {sorted(unknown)}"
        for name, entry in value.items():
            reason = check(entry, plain[name], f"{path}.{name}")
            if reason:
                return reason
        return None
    if kind is float:
        return None if isinstance(value, (int, float)) else f"{path} is not a number"
    if isinstance(kind, type):
        return None if isinstance(value, kind) else f"{path} is not {kind.__name__}"
    # Files and other things that are not JSON.
    return f"{path} is not {kind}"


def anthropic(request):
    return check(request["messages"], typing.List[MessageParam], "messages") or check(
        request.get("system", []), typing.List[TextBlockParam], "system"
    )


def openai_chat(request):
    messages = [{k: v for k, v in m.items() if k not in COMPATIBLE_SERVERS} for m in request["messages"]]
    return check(messages, typing.List[ChatCompletionMessageParam], "messages")


def openai_responses(request):
    items = [item for item in request["input"] if item.get("type") not in UNCHECKED_ITEMS]
    return check(items, typing.List[ResponseInputItemParam], "input")


def google(request):
    try:
        for content in request["contents"]:
            gemini.Content.model_validate(content)
        gemini.Content.model_validate(request.get("systemInstruction", {}))
    except ValueError as error:
        return str(error)
    return None


CHECKS = {
    "anthropic": anthropic,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "gemini": google,
}


def self_test():
    """The checks must find faults."""
    text = {"type": "text", "text": "a"}
    assert anthropic({"messages": [{"role": "user", "content": [text]}]}) is None
    assert anthropic({"messages": [{"role": "user", "content": [{**text, "x": 1}]}]})
    assert anthropic({"messages": [{"role": "user", "content": [{"type": "thinking"}]}]})
    assert openai_chat({"messages": [{"role": "user", "content": "a"}]}) is None
    assert openai_chat({"messages": [{"role": "tool", "content": "a"}]})
    assert openai_responses({"input": [{"role": "user", "content": "a"}]}) is None
    assert openai_responses({"input": [{"type": "reasoning", "summary": []}]})
    assert google({"contents": [{"role": "user", "parts": [{"text": "a"}]}]}) is None
    assert google({"contents": [{"role": "user", "parts": [{"txt": "a"}]}]})


def main():
    self_test()
    counts = collections.Counter()
    refused = 0
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            counts[entry["provider"]] += 1
            reason = CHECKS[entry["provider"]](entry["request"])
            if reason:
                refused += 1
                if refused <= 20:
                    print(f"check-providers: {entry['provider']}: {reason}", file=sys.stderr)
    for provider in CHECKS:
        print(f"{provider}: {counts[provider]} requests")
    print(f"refused: {refused}")
    sys.exit(1 if refused or not counts else 0)


main()
