#!/usr/bin/env python3
"""Fake model server for agent-CLI tests (loopback only, stdlib only).

Speaks just enough of four wire formats:
  Anthropic Messages   POST /v1/messages (stream + plain), /v1/messages/count_tokens
  Gemini               POST /v1beta/models/<m>:generateContent | :streamGenerateContent | :countTokens
  OpenAI Responses     POST [/v1]/responses (SSE or plain)
  OpenAI Chat          POST [/v1]/chat/completions (SSE or plain)
  GET [/v1]/models     minimal list
Every request is logged as one JSON line to --log (no header values, only header names).

Markers in the LAST user message steer the reply:
  [[SLOW n]]   stream one word every 0.5 s for n seconds
  [[TOOL cmd]] ask the agent's shell tool to run cmd (once; tool result -> plain reply)
  [[ERR n]]    answer HTTP n
  [[TASK text]] ask for a sub-agent (Claude's Task/Agent tool) with this prompt
  [[HANG n]]   accept the request, send headers, then nothing for n seconds
A model name containing 'nonexistent' gets a 404 in the vendor's error format.
"""
import argparse, json, re, sys, time, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOG = None
T0 = time.time()
DUMP = None   # directory for raw request bodies, or None

def log(rec):
    rec["t"] = round(time.time() - T0, 3)
    if LOG:
        LOG.write(json.dumps(rec, ensure_ascii=False) + "\n"); LOG.flush()

def flat(content):
    """text of a content value in any of the formats"""
    if content is None: return ""
    if isinstance(content, str): return content
    if isinstance(content, list): return "\n".join(flat(c) for c in content)
    if isinstance(content, dict):
        if content.get("type") in ("tool_result", "function_call_output"): return ""
        return content.get("text") or flat(content.get("content") or content.get("parts"))
    return ""

SHELL_NAMES = ["Bash", "bash", "run_shell_command", "shell_command", "shell", "exec_command", "local_shell"]

def shell_tool(names):
    for n in SHELL_NAMES:
        if n in names: return n
    return None

def shell_args(tool, cmd):
    if tool == "exec_command": return {"cmd": cmd, "yield_time_ms": 600000}
    if tool in ("shell", "local_shell"): return {"command": ["bash", "-lc", cmd]}
    if tool == "shell_command": return {"command": cmd, "timeout_ms": 600000}
    if tool == "Bash": return {"command": cmd, "description": "fake", "timeout": 600000}
    if tool == "bash": return {"command": cmd, "description": "fake", "timeout": 600000}
    return {"command": cmd, "description": "fake", "is_background": False}

class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fake/1"
    def log_message(self, *a): pass

    # ---------- plumbing
    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or "").lower():
            out = b""
            while True:
                n = int(self.rfile.readline().split(b";")[0].strip() or b"0", 16)
                if n == 0:
                    self.rfile.readline(); break
                out += self.rfile.read(n); self.rfile.readline()
            raw = out
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        enc = (self.headers.get("content-encoding") or "").lower()
        if enc == "gzip":
            import gzip; raw = gzip.decompress(raw)
        elif enc == "zstd":
            return {"_zstd": len(raw)}
        if DUMP: open(DUMP + f"/{time.time():.3f}{self.path.split('?')[0].replace('/', '_')}.json", "wb").write(raw)
        try: return json.loads(raw or b"{}")
        except Exception: return {"_raw": raw[:200].decode("latin1")}

    def js(self, obj, code=200, extra=None):
        b = json.dumps(obj).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(b)))
        for k, v in (extra or {}).items(): self.send_header(k, v)
        self.end_headers(); self.wfile.write(b)

    def sse_start(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("connection", "close")
        self.end_headers(); self.close_connection = True

    def ev(self, obj, name=None):
        s = (f"event: {name}\n" if name else "") + "data: " + (obj if isinstance(obj, str) else json.dumps(obj)) + "\n\n"
        self.wfile.write(s.encode()); self.wfile.flush()

    def plan(self, user, tools, is_tool_result):
        """-> (words, delay, tool, toolargs, hang, err)"""
        m = re.search(r"\[\[(SLOW|HANG|ERR) ([\d.]+)\]\]", user or "")
        t = re.search(r"\[\[TOOL (.+?)\]\]", user or "", re.S)
        task = re.search(r"\[\[TASK (.+?)\]\]", user or "", re.S)
        if task and not is_tool_result and ("Task" in tools or "Agent" in tools):
            name = "Task" if "Task" in tools else "Agent"
            return ([], 0, name, {"description": "sub", "prompt": task[1], "subagent_type": "general-purpose"}, 0, 0)
        if is_tool_result: return (["tool", " result", " seen"], 0, None, None, 0, 0)
        if m and m[1] == "ERR": return ([], 0, None, None, 0, int(float(m[2])))
        if m and m[1] == "HANG": return (["late"], 0, None, None, float(m[2]), 0)
        if m and m[1] == "SLOW":
            n = max(1, int(float(m[2]) * 2)); return ([f"tick{i} " for i in range(n)], 0.5, None, None, 0, 0)
        if t:
            n = shell_tool(tools)
            if n: return ([], 0, n, shell_args(n, t[1]), 0, 0)
        last = (user or "").strip().splitlines()[-1:] or [""]
        return (["pong:", " ", last[0][:80]], 0, None, None, 0, 0)

    # ---------- routes
    def do_GET(self):
        log({"m": "GET", "p": self.path, "h": sorted(k.lower() for k in self.headers)})
        if self.path.split("?")[0].endswith("/models"):
            return self.js({"object": "list", "data": [{"id": "fake-model", "object": "model", "owned_by": "fake"}], "models": []})
        self.js({"error": {"message": "not found"}}, 404)
    do_HEAD = do_GET

    def do_POST(self):
        b = self.body(); path = self.path.split("?")[0]
        try:
            if path.endswith("/messages/count_tokens"):
                log({"m": "POST", "p": self.path, "model": b.get("model")}); return self.js({"input_tokens": 10})
            if path.endswith("/messages"): return self.anthropic(b)
            if path.endswith("/responses"): return self.api_responses(b)
            if path.endswith("/chat/completions"): return self.chat(b)
            m = re.search(r"/models/([^:/]+):(\w+)$", path)
            if m: return self.gemini(b, m[1], m[2])
            log({"m": "POST", "p": self.path, "keys": sorted(b)[:20] if isinstance(b, dict) else str(type(b)), "h": sorted(k.lower() for k in self.headers)})
            self.js({"error": {"message": "not found"}}, 404)
        except (BrokenPipeError, ConnectionResetError) as e:
            log({"client_gone": path, "e": str(e)})

    def unknown(self, model, style):
        if "nonexistent" not in (model or ""): return False
        if style == "anthropic":
            self.js({"type": "error", "error": {"type": "not_found_error", "message": f"model: {model}"}}, 404)
        elif style == "gemini":
            self.js({"error": {"code": 404, "message": f"models/{model} is not found for API version v1beta", "status": "NOT_FOUND"}}, 404)
        else:
            self.js({"error": {"message": f"The model `{model}` does not exist or you do not have access to it.", "type": "invalid_request_error", "param": None, "code": "model_not_found"}}, 404)
        return True

    # ---------- Anthropic
    def anthropic(self, b):
        msgs = b.get("messages") or []
        # Claude Code 2.1.3xx appends role:"system" messages after the user turn: look at the last *user* message
        last = ([m for m in msgs if m.get("role") == "user"] or [{}])[-1]
        isres = isinstance(last.get("content"), list) and any(c.get("type") == "tool_result" for c in last["content"])
        user = re.sub(r"<system-reminder>.*?</system-reminder>", "", flat(last.get("content")), flags=re.S).strip(); tools = [t.get("name") for t in b.get("tools") or []]
        log({"m": "POST", "p": self.path, "model": b.get("model"), "stream": b.get("stream"), "n": len(msgs), "tools": len(tools), "user": user[-200:], "keys": sorted(b), "h": sorted(k.lower() for k in self.headers)})
        if self.unknown(b.get("model"), "anthropic"): return
        words, delay, tool, args, hang, err = self.plan(user, tools, isres)
        if err: return self.js({"type": "error", "error": {"type": "api_error", "message": f"fake {err}"}}, err)
        mid = "msg_" + uuid.uuid4().hex[:24]
        base = {"id": mid, "type": "message", "role": "assistant", "model": b.get("model"), "content": [], "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}}
        if not b.get("stream"):
            base["content"] = [{"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": tool, "input": args}] if tool else [{"type": "text", "text": "".join(words)}]
            base["stop_reason"] = "tool_use" if tool else "end_turn"; time.sleep(hang + delay * len(words)); return self.js(base)
        self.sse_start()
        if hang: time.sleep(hang)
        self.ev({"type": "message_start", "message": base}, "message_start")
        if tool:
            self.ev({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": tool, "input": {}}}, "content_block_start")
            self.ev({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": json.dumps(args)}}, "content_block_delta")
        else:
            self.ev({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start")
            for w in words:
                self.ev({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": w}}, "content_block_delta")
                if delay: time.sleep(delay)
        self.ev({"type": "content_block_stop", "index": 0}, "content_block_stop")
        self.ev({"type": "message_delta", "delta": {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}}, "message_delta")
        self.ev({"type": "message_stop"}, "message_stop")

    # ---------- Gemini
    def gemini(self, b, model, verb):
        cs = b.get("contents") or []
        if isinstance(cs, dict): cs = [cs]
        last = cs[-1] if cs else {}
        isres = any("functionResponse" in p for p in last.get("parts") or [])
        # After an interrupted turn Gemini merges the old prompt and the new one into one message: the last part is the turn
        user = ([p["text"] for p in last.get("parts") or [] if p.get("text")] or [""])[-1]
        tools = [f.get("name") for t in b.get("tools") or [] for f in t.get("functionDeclarations") or []]
        log({"m": "POST", "p": self.path, "model": model, "n": len(cs), "tools": tools[:40], "user": user[-200:], "keys": sorted(b), "schema": bool((b.get("generationConfig") or {}).get("responseJsonSchema") or (b.get("generationConfig") or {}).get("responseSchema")), "h": sorted(k.lower() for k in self.headers)})
        if verb == "countTokens": return self.js({"totalTokens": 10})
        if self.unknown(model, "gemini"): return
        words, delay, tool, args, hang, err = self.plan(user, tools, isres)
        if err: return self.js({"error": {"code": err, "message": f"fake {err}", "status": "INTERNAL"}}, err)
        gc = b.get("generationConfig") or {}
        if gc.get("responseMimeType") == "application/json" or gc.get("responseJsonSchema"):
            words = [json.dumps({"reasoning": "fake", "next_speaker": "user", "model_choice": "flash", "complexity_score": 10, "complexity_reasoning": "fake"})]; tool = None; delay = 0
        def chunk(parts, fin=None):
            c = {"content": {"role": "model", "parts": parts}, "index": 0}
            if fin: c["finishReason"] = fin
            o = {"candidates": [c], "modelVersion": model, "responseId": "fake"}
            if fin: o["usageMetadata"] = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
            return o
        parts = [{"functionCall": {"name": tool, "args": args}}] if tool else [{"text": "".join(words)}]
        if verb == "generateContent":
            time.sleep(hang + delay * len(words)); return self.js(chunk(parts, "STOP"))
        self.sse_start()
        if hang: time.sleep(hang)
        if tool: return self.ev(chunk(parts, "STOP"))
        for i, w in enumerate(words):
            self.ev(chunk([{"text": w}], "STOP" if i == len(words) - 1 else None))
            if delay: time.sleep(delay)

    # ---------- OpenAI Responses
    def api_responses(self, b):
        inp = b.get("input") or []
        if isinstance(inp, str): inp = [{"type": "message", "role": "user", "content": inp}]
        last = inp[-1] if inp else {}
        isres = str(last.get("type", "")).endswith("_output")
        users = [i for i in inp if i.get("role") == "user"]
        user = flat(users[-1].get("content")) if users else ""
        tools = [t.get("name") or t.get("type") for t in b.get("tools") or []]
        log({"m": "POST", "p": self.path, "model": b.get("model"), "stream": b.get("stream"), "n": len(inp), "tools": tools, "user": user[-200:], "keys": sorted(b), "h": sorted(k.lower() for k in self.headers)})
        if self.unknown(b.get("model"), "openai"): return
        words, delay, tool, args, hang, err = self.plan(user, tools, isres)
        if err: return self.js({"error": {"message": f"fake {err}", "type": "server_error", "code": None}}, err)
        rid = "resp_" + uuid.uuid4().hex[:24]; text = "".join(words)
        usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15}
        def resp(status, out): return {"id": rid, "object": "response", "created_at": int(time.time()), "status": status, "model": b.get("model"), "output": out, "usage": usage if status == "completed" else None}
        if tool: item = {"type": "function_call", "id": "fc_" + rid[5:], "call_id": "call_" + rid[5:], "name": tool, "arguments": json.dumps(args), "status": "completed"}
        else: item = {"type": "message", "id": "msg_" + rid[5:], "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
        if not b.get("stream"):
            time.sleep(hang + delay * len(words)); return self.js(resp("completed", [item]))
        self.sse_start(); seq = [0]
        def e(name, **kw):
            self.ev({"type": name, "sequence_number": seq[0], **kw}, name); seq[0] += 1
        if hang: time.sleep(hang)
        e("response.created", response=resp("in_progress", []))
        e("response.in_progress", response=resp("in_progress", []))
        if tool:
            e("response.output_item.added", output_index=0, item={**item, "arguments": "", "status": "in_progress"})
            e("response.function_call_arguments.delta", item_id=item["id"], output_index=0, delta=item["arguments"])
            e("response.function_call_arguments.done", item_id=item["id"], output_index=0, arguments=item["arguments"])
        else:
            e("response.output_item.added", output_index=0, item={**item, "content": [], "status": "in_progress"})
            e("response.content_part.added", item_id=item["id"], output_index=0, content_index=0, part={"type": "output_text", "text": "", "annotations": []})
            for w in words:
                e("response.output_text.delta", item_id=item["id"], output_index=0, content_index=0, delta=w)
                if delay: time.sleep(delay)
            e("response.output_text.done", item_id=item["id"], output_index=0, content_index=0, text=text)
            e("response.content_part.done", item_id=item["id"], output_index=0, content_index=0, part=item["content"][0])
        e("response.output_item.done", output_index=0, item=item)
        e("response.completed", response=resp("completed", [item]))

    # ---------- OpenAI Chat Completions
    def chat(self, b):
        msgs = b.get("messages") or []; last = msgs[-1] if msgs else {}
        users = [m for m in msgs if m.get("role") == "user"]
        user = flat(users[-1].get("content")) if users else ""
        tools = [(t.get("function") or {}).get("name") for t in b.get("tools") or []]
        log({"m": "POST", "p": self.path, "model": b.get("model"), "stream": b.get("stream"), "n": len(msgs), "tools": tools, "user": user[-200:], "keys": sorted(b), "h": sorted(k.lower() for k in self.headers)})
        if self.unknown(b.get("model"), "openai"): return
        words, delay, tool, args, hang, err = self.plan(user, tools, last.get("role") == "tool")
        if err: return self.js({"error": {"message": f"fake {err}", "type": "server_error", "code": None}}, err)
        cid = "chatcmpl-" + uuid.uuid4().hex[:20]
        tc = [{"index": 0, "id": "call_" + uuid.uuid4().hex[:16], "type": "function", "function": {"name": tool, "arguments": json.dumps(args)}}] if tool else None
        fin = "tool_calls" if tool else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not b.get("stream"):
            time.sleep(hang + delay * len(words))
            msg = {"role": "assistant", "content": None if tool else "".join(words)}
            if tool: msg["tool_calls"] = tc
            return self.js({"id": cid, "object": "chat.completion", "created": int(time.time()), "model": b.get("model"), "choices": [{"index": 0, "message": msg, "finish_reason": fin}], "usage": usage})
        self.sse_start()
        if hang: time.sleep(hang)
        def c(delta, f=None, u=None):
            o = {"id": cid, "object": "chat.completion.chunk", "created": int(time.time()), "model": b.get("model"), "choices": [{"index": 0, "delta": delta, "finish_reason": f}]}
            if u: o["usage"] = u
            self.ev(o)
        c({"role": "assistant", "content": ""})
        if tool: c({"tool_calls": tc})
        else:
            for w in words:
                c({"content": w})
                if delay: time.sleep(delay)
        c({}, fin, usage); self.ev("[DONE]")

if __name__ == "__main__":
    ap = argparse.ArgumentParser(); ap.add_argument("--port", type=int, default=0); ap.add_argument("--log"); ap.add_argument("--dump"); a = ap.parse_args()
    DUMP = a.dump
    LOG = open(a.log, "a") if a.log else None
    s = ThreadingHTTPServer(("127.0.0.1", a.port), H); s.daemon_threads = True
    print(f"listening http://127.0.0.1:{s.server_address[1]}", flush=True)
    s.serve_forever()
