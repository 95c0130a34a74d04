#!/usr/bin/env python3
"""A scripted model on loopback, so that the real agent programs run whole turns without a key and a network.

    fake_model.py [--port N] [--log FILE] [--trailer TEXT]

Formats: Anthropic Messages, OpenAI Responses, OpenAI Chat Completions, Gemini generateContent; streamed and plain.
Prints its address, then serves until it is killed. Each request is a JSON line in the log: path, model, number of
tools, number of messages and the text of the last user message.

The last user message steers the reply:
    [[SAY name]]       the file replies/name; [[SAY name 0.4]] with 0.4 s between its pieces
    [[SLOW n]]         a word each half second for n seconds
    [[HANG n]]         headers, then nothing for n seconds
    [[TOOL command]]   a call of the agent's shell tool; its result gets a plain reply
    [[ESCALATE command]]  the same, outside of Codex's sandbox, for which it asks
    [[MCP name {…}]]   a call of the tool `name` of an MCP server, with these arguments
    [[TASK prompt]]    a sub-agent
    [[ECHO text]]      `pong: text`, also behind a message that got no answer and is sent again with this one
    [[ERR n]]          HTTP status n
`((TOOL x))` in a value is `[[TOOL x]]` in the command: a directive for another agent. The result of a tool that has
the reply of another agent (`pong:` or `tick`), or of the bus (`verb`), is repeated.
Any other message gets `pong: <its last line>`. TEXT is put below plain replies. A request without tools, such as
for the title of a session, gets `Short title`.
"""
import argparse
import gzip
import json
import os
import re
import sys
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPLIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "replies")
SHELL_TOOLS = ["Bash", "bash", "run_shell_command", "shell_command", "shell", "exec_command", "local_shell"]
OPTIONS = None
LOG = None


@dataclass
class Reply:
    words: list = field(default_factory=list)
    pause: float = 0
    tool: str = ""
    arguments: dict = field(default_factory=dict)
    hang: float = 0
    status: int = 200

    @property
    def text(self):
        return "".join(self.words)

    def wait(self):
        """For a reply that is not streamed."""
        time.sleep(self.hang + self.pause * len(self.words))


def error_text(status):
    return MESSAGES.get(status, f"scripted {status}")


def flat(content):
    """The text of a content value of any of the formats, without tool results."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(flat(part) for part in content)
    if isinstance(content, dict) and content.get("type") not in ("tool_result", "function_call_output"):
        return content.get("text") or flat(content.get("content") or content.get("parts"))
    return ""


def shell_arguments(tool, command, escalate):
    arguments = {
        "exec_command": {"cmd": command, "yield_time_ms": 600000},
        "shell_command": {"command": command, "timeout_ms": 600000},
        "shell": {"command": ["bash", "-lc", command]},
        "local_shell": {"command": ["bash", "-lc", command]},
        "Bash": {"command": command, "description": "scripted", "timeout": 600000},
        "bash": {"command": command, "description": "scripted", "timeout": 600000},
    }.get(tool, {"command": command, "description": "scripted", "is_background": False})
    if escalate and tool in ("exec_command", "shell_command"):
        arguments |= {"sandbox_permissions": "require_escalated", "justification": "Run it?"}
    return arguments


def plan(user, tools, is_tool_result, result=""):
    trailer = "\n\n" + OPTIONS.trailer if OPTIONS.trailer else ""
    if is_tool_result:
        if any(word in result for word in ("pong:", "tick", '\\"verb\\"', '\\"kind\\"')):
            return Reply(["told: ", result[-2000:], trailer])
        return Reply(["tool", " result", " seen", trailer])
    if not tools:
        return Reply(["Short title"])
    found = re.findall(r"\[\[(SAY|SLOW|HANG|TOOL|ESCALATE|MCP|TASK|ECHO|ERR) (.+?)\]\]", user, re.S)
    if not found:
        last = user.strip().splitlines()[-1:] or [""]
        return Reply(["pong:", " ", last[0][:80], trailer])
    kind, value = found[-1]
    value = value.replace("((", "[[").replace("))", "]]")
    if kind == "SAY":
        name, _, pause = value.partition(" ")
        with open(os.path.join(REPLIES, os.path.basename(name)), encoding="utf-8", newline="") as file:
            text = file.read()
        size = 24 if len(text) < 50000 else 4096
        return Reply([text[i : i + size] for i in range(0, len(text), size)], float(pause or 0))
    if kind == "SLOW":
        return Reply([f"tick{i} " for i in range(max(1, int(float(value) * 2)))], 0.5)
    if kind == "HANG":
        return Reply(["late", trailer], hang=float(value))
    if kind == "ECHO":
        return Reply(["pong:", " ", value, trailer])
    if kind == "ERR":
        return Reply(status=int(value))
    if kind == "MCP":
        name, _, arguments = value.partition(" ")
        tool = next((tool for tool in tools if re.fullmatch(rf"mcp__\w+__{name}", tool)), "")
        if not tool:
            return Reply(["no tool ", name, trailer])
        return Reply(tool=tool, arguments=json.loads(arguments or "{}"))
    if kind == "TASK":
        name = next((name for name in ("Task", "Agent") if name in tools), "")
        return Reply(tool=name, arguments={"description": "sub", "prompt": value, "subagent_type": "general-purpose"})
    tool = next((name for name in SHELL_TOOLS if name in tools), "")
    if not tool:
        return Reply(["no shell tool", trailer])
    return Reply(tool=tool, arguments=shell_arguments(tool, value, kind == "ESCALATE"))


# What the services say: some agents print the message alone.
MESSAGES = {400: "Invalid request", 401: "Incorrect API key provided", 429: "Rate limit reached for requests", 529: "Overloaded"}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments):
        # An agent that is killed resets its connections.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*arguments)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def record(self, **entry):
        if LOG:
            LOG.write(json.dumps(entry, ensure_ascii=False) + "\n")
            LOG.flush()

    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or "").lower():
            raw = b""
            while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if (self.headers.get("content-encoding") or "").lower() == "gzip":
            raw = gzip.decompress(raw)
        try:
            return json.loads(raw or b"{}")
        except ValueError:
            return {}

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, value, name=None):
        text = value if isinstance(value, str) else json.dumps(value)
        self.wfile.write(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())
        self.wfile.flush()

    def words(self, reply):
        for word in reply.words:
            yield word
            time.sleep(reply.pause)

    def do_GET(self):
        if self.path.split("?")[0].endswith("/models"):
            return self.answer({"object": "list", "data": [{"id": "fake-model", "object": "model"}], "models": []})
        self.answer({"error": {"message": "not found"}}, 404)

    do_HEAD = do_GET

    def do_POST(self):
        body, path = self.body(), self.path.split("?")[0]
        gemini = re.search(r"/models/([^:/]+):(\w+)$", path)
        try:
            if path.endswith("/messages/count_tokens"):
                self.answer({"input_tokens": 10})
            elif path.endswith("/messages"):
                self.anthropic(body)
            elif path.endswith("/responses"):
                self.openai_responses(body)
            elif path.endswith("/chat/completions"):
                self.openai_chat(body)
            elif gemini:
                self.gemini(body, gemini[1], gemini[2])
            else:
                self.answer({"error": {"message": "not found"}}, 404)
        except (BrokenPipeError, ConnectionResetError):
            self.record(client_gone=path)

    def anthropic(self, body):
        # Claude Code puts system messages behind the user's turn.
        last = ([m for m in body.get("messages") or [] if m.get("role") == "user"] or [{}])[-1]
        content = last.get("content")
        user = re.sub(r"<system-reminder>.*?</system-reminder>|\[Request interrupted by user[^\]]*\]", "", flat(content), flags=re.S).strip()
        # The result of a refused tool arrives together with the next message.
        is_result = not user and isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)
        tools = [tool.get("name") for tool in body.get("tools") or []]
        self.record(path=self.path, model=body.get("model"), tools=len(tools), messages=len(body.get("messages") or []), user=user)
        reply = plan(user, tools, is_result, json.dumps(content, ensure_ascii=False) if is_result else "")
        if reply.status != 200:
            kind = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
            return self.answer({"type": "error", "error": {"type": kind.get(reply.status, "api_error"), "message": error_text(reply.status)}}, reply.status)
        usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
        message = {"id": "msg_" + uuid.uuid4().hex[:24], "type": "message", "role": "assistant", "model": body.get("model"),
                   "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        stop = "tool_use" if reply.tool else "end_turn"
        call = {"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": reply.tool}
        if not body.get("stream"):
            reply.wait()
            content = [call | {"input": reply.arguments}] if reply.tool else [{"type": "text", "text": reply.text}]
            return self.answer(message | {"content": content, "stop_reason": stop})
        self.start_stream()
        time.sleep(reply.hang)

        def send(kind, **fields):
            self.event({"type": kind, **fields}, kind)

        send("message_start", message=message)
        if reply.tool:
            send("content_block_start", index=0, content_block=call | {"input": {}})
            send("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": json.dumps(reply.arguments)})
        else:
            send("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for word in self.words(reply):
                send("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        send("content_block_stop", index=0)
        send("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 5})
        send("message_stop")

    def gemini(self, body, model, verb):
        contents = body.get("contents") or []
        last = (contents if isinstance(contents, list) else [contents])[-1:] or [{}]
        parts = last[0].get("parts") or []
        user = "\n".join(part.get("text", "") for part in parts)
        tools = [f.get("name") for tool in body.get("tools") or [] for f in tool.get("functionDeclarations") or []]
        self.record(path=self.path, model=model, tools=len(tools), messages=len(contents), user=user)
        if verb == "countTokens":
            return self.answer({"totalTokens": 10})
        reply = plan(user, tools, any("functionResponse" in part for part in parts))
        if reply.status != 200:
            kind = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}.get(reply.status, "INTERNAL")
            return self.answer({"error": {"code": reply.status, "message": error_text(reply.status), "status": kind}}, reply.status)
        config = body.get("generationConfig") or {}
        if config.get("responseMimeType") == "application/json" or config.get("responseJsonSchema"):
            decision = {"reasoning": "scripted", "next_speaker": "user", "model_choice": "flash", "complexity_score": 10, "complexity_reasoning": "scripted"}
            reply = Reply([json.dumps(decision)])

        def chunk(parts, is_last):
            candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
            value = {"candidates": [candidate], "modelVersion": model, "responseId": "scripted"}
            if is_last:
                candidate["finishReason"] = "STOP"
                value["usageMetadata"] = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
            return value

        call = [{"functionCall": {"name": reply.tool, "args": reply.arguments}}]
        if verb == "generateContent":
            reply.wait()
            return self.answer(chunk(call if reply.tool else [{"text": reply.text}], True))
        self.start_stream()
        time.sleep(reply.hang)
        if reply.tool:
            return self.event(chunk(call, True))
        for i, word in enumerate(self.words(reply)):
            self.event(chunk([{"text": word}], i == len(reply.words) - 1))

    def openai_error(self, status):
        kind = {400: "invalid_request_error", 401: "invalid_request_error", 429: "rate_limit_exceeded"}.get(status, "server_error")
        self.answer({"error": {"message": error_text(status), "type": kind, "code": None}}, status)

    def openai_responses(self, body):
        items = body.get("input") or []
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        users = [item for item in items if item.get("role") == "user"]
        user = flat(users[-1].get("content")) if users else ""
        tools = [tool.get("name") or tool.get("type") for tool in body.get("tools") or []]
        self.record(path=self.path, model=body.get("model"), tools=len(tools), messages=len(items), user=user)
        is_result = bool(items) and str(items[-1].get("type", "")).endswith("_output")
        reply = plan(user, tools, is_result, json.dumps(items[-1], ensure_ascii=False) if is_result else "")
        if reply.status != 200:
            return self.openai_error(reply.status)
        key = uuid.uuid4().hex[:24]
        usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15}

        def response(status, output):
            return {"id": f"resp_{key}", "object": "response", "created_at": int(time.time()), "status": status,
                    "model": body.get("model"), "output": output, "usage": usage if status == "completed" else None}

        part = {"type": "output_text", "text": reply.text, "annotations": []}
        if reply.tool:
            item = {"type": "function_call", "id": f"fc_{key}", "call_id": f"call_{key}", "name": reply.tool,
                    "arguments": json.dumps(reply.arguments), "status": "completed"}
        else:
            item = {"type": "message", "id": f"msg_{key}", "role": "assistant", "status": "completed", "content": [part]}
        if not body.get("stream"):
            reply.wait()
            return self.answer(response("completed", [item]))
        self.start_stream()
        time.sleep(reply.hang)
        number = 0

        def send(kind, **fields):
            nonlocal number
            self.event({"type": kind, "sequence_number": number, **fields}, kind)
            number += 1

        place = {"item_id": item["id"], "output_index": 0}
        send("response.created", response=response("in_progress", []))
        if reply.tool:
            send("response.output_item.added", output_index=0, item=item | {"arguments": "", "status": "in_progress"})
            send("response.function_call_arguments.delta", **place, delta=item["arguments"])
            send("response.function_call_arguments.done", **place, arguments=item["arguments"])
        else:
            place["content_index"] = 0
            send("response.output_item.added", output_index=0, item=item | {"content": [], "status": "in_progress"})
            send("response.content_part.added", **place, part=part | {"text": ""})
            for word in self.words(reply):
                send("response.output_text.delta", **place, delta=word)
            send("response.output_text.done", **place, text=reply.text)
            send("response.content_part.done", **place, part=part)
        send("response.output_item.done", output_index=0, item=item)
        send("response.completed", response=response("completed", [item]))

    def openai_chat(self, body):
        messages = body.get("messages") or []
        users = [message for message in messages if message.get("role") == "user"]
        user = flat(users[-1].get("content")) if users else ""
        tools = [(tool.get("function") or {}).get("name") for tool in body.get("tools") or []]
        self.record(path=self.path, model=body.get("model"), tools=len(tools), messages=len(messages), user=user)
        reply = plan(user, tools, bool(messages) and messages[-1].get("role") == "tool")
        if reply.status != 200:
            return self.openai_error(reply.status)
        base = {"id": "chatcmpl-" + uuid.uuid4().hex[:20], "created": int(time.time()), "model": body.get("model")}
        calls = [{"index": 0, "id": "call_" + uuid.uuid4().hex[:16], "type": "function",
                  "function": {"name": reply.tool, "arguments": json.dumps(reply.arguments)}}]
        finish = "tool_calls" if reply.tool else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            reply.wait()
            message = {"role": "assistant", "content": None if reply.tool else reply.text}
            if reply.tool:
                message["tool_calls"] = calls
            choices = [{"index": 0, "message": message, "finish_reason": finish}]
            return self.answer(base | {"object": "chat.completion", "choices": choices, "usage": usage})
        self.start_stream()
        time.sleep(reply.hang)

        def send(delta, finish=None, **fields):
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            self.event(base | {"object": "chat.completion.chunk", "choices": choices} | fields)

        send({"role": "assistant", "content": ""})
        if reply.tool:
            send({"tool_calls": calls})
        else:
            for word in self.words(reply):
                send({"content": word})
        send({}, finish, usage=usage)
        self.event("[DONE]")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log")
    parser.add_argument("--trailer", default="")
    OPTIONS = parser.parse_args()
    LOG = open(OPTIONS.log, "a", encoding="utf-8") if OPTIONS.log else None
    server = Server(("127.0.0.1", OPTIONS.port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
