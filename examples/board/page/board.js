// The page of the board. Text of agents enters the document through textContent only; the server's
// policy (require-trusted-types-for) makes any other way an error.
"use strict";

const $ = (id) => document.getElementById(id);

// An element with properties and children. Children are nodes or texts, never markup.
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

const SVG = "http://www.w3.org/2000/svg";

// ---------------------------------------------------------------------------------------- storage

// Access to storage throws where the user has switched it off.
const store = {
  get(area, name) { try { return area.getItem(name); } catch { return null; } },
  set(area, name, value) { try { area.setItem(name, value); } catch { /* not remembered */ } },
};

// ------------------------------------------------------------------------------------------ state

const ALL = "";
// The most messages that the page keeps.
const KEPT_MESSAGES = 20000;

const board = {
  stream: "", seq: 0, skew: 0, firstMessage: null,
  agents: new Map(), messages: [], permissions: new Map(), queue: new Map(), claims: new Map(),
  snapshots: new Map(), failures: [], budgets: [],
};

const view = {
  agent: store.get(sessionStorage, "agent") ?? ALL,
  tab: store.get(sessionStorage, "tab") === "output" ? "output" : "messages",
  find: "",
};

const now = () => Date.now() + board.skew;
const agentsInOrder = () => [...board.agents.values()].sort((a, b) => a.order - b.order);
const nameOf = (id) => board.agents.get(id)?.name ?? id;

function applyState(state) {
  board.seq = state.seq;
  board.agents = new Map(state.agents.map((agent) => [agent.id, agent]));
  for (const agent of state.agents) hue(agent.name);
  board.messages = state.messages;
  board.firstMessage = state.first_message;
  board.permissions = new Map(state.permissions.map((p) => [p.id, p]));
  board.queue = new Map(state.queue.map((item) => [item.id, item]));
  board.claims = new Map(Object.entries(state.claims));
  board.snapshots = new Map();
  for (const snapshot of state.snapshots) addSnapshot(snapshot);
  board.failures = state.failures;
  board.budgets = state.budgets;
  if (view.agent !== ALL && !board.agents.has(view.agent)) view.agent = ALL;
  feed.reset();
  mark("agents", "head", "needs", "settled", "queue", "claims", "snapshots", "failures", "usage", "flow", "totals", "to", "feed");
  output.watch();
  backfill();
}

function applyEvent(event) {
  // Numbers have no gap; an event from before a reconnect is repeated and does no harm.
  if (event.seq <= board.seq) return;
  if (event.seq !== board.seq + 1) throw new Error("gap");
  board.seq = event.seq;
  switch (event.type) {
    case "agent": {
      const fresh = !board.agents.has(event.agent.id);
      board.agents.set(event.agent.id, event.agent);
      agentList.dirty.add(event.agent.id);
      later("agents", "totals", "usage");
      if (fresh) later("to", "flow");
      if (view.agent === event.agent.id) later("head", "to");
      later("flowNodes");
      break;
    }
    case "agent_gone":
      board.agents.delete(event.id);
      if (view.agent === event.id) select(ALL);
      later("agents", "totals", "usage", "to", "flow");
      break;
    case "message":
      board.messages.push(event.message);
      if (board.messages.length > KEPT_MESSAGES * 1.1) {
        board.messages.splice(0, board.messages.length - KEPT_MESSAGES);
        feed.reset();
      }
      feed.added(event.message);
      flow.added(event.message);
      later("totals", "feed");
      break;
    case "permission":
      board.permissions.set(event.permission.id, event.permission);
      for (const [id, { settled }] of board.permissions) {
        if (board.permissions.size <= 300) break;
        if (settled) board.permissions.delete(id);
      }
      later("needs", "settled", "agents", "totals");
      break;
    case "queued": board.queue.set(event.item.id, event.item); later("queue"); break;
    case "queued_gone": board.queue.delete(event.id); later("queue"); break;
    case "claims": board.claims.set(event.store, event.claims); later("claims"); break;
    case "snapshot": addSnapshot(event.snapshot); later("snapshots"); break;
    case "failure":
      board.failures.push(event.failure);
      if (board.failures.length > 300) board.failures.shift();
      later("failures");
      break;
    case "budget":
      board.budgets = board.budgets.filter((b) => b.agent !== event.budget.agent).concat(event.budget);
      later("usage", "totals");
      break;
  }
}

function addSnapshot(snapshot) {
  const list = board.snapshots.get(snapshot.agent) ?? [];
  list.push(snapshot);
  if (list.length > 60) list.shift();
  board.snapshots.set(snapshot.agent, list);
}

// ------------------------------------------------------------------------------------- connection

const link = {
  socket: null, key: store.get(localStorage, "board-key") ?? "", nextId: 1, replies: new Map(),
  retry: 500, everOpened: false,

  async start() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (token) {
      // Out of the address bar and the history first, whatever comes of it.
      history.replaceState(null, "", location.pathname);
      const headers = { "content-type": "application/json" };
      const answer = await fetch("/login", { method: "POST", headers, body: JSON.stringify({ token }) });
      if (!answer.ok) return this.refused();
      this.key = (await answer.json()).key;
      store.set(localStorage, "board-key", this.key);
    }
    if (!this.key) return this.refused();
    this.connect();
  },

  connect() {
    this.show("connecting", "connecting");
    const socket = new WebSocket(`ws://${location.host}/events`);
    let opened = false;
    this.socket = socket;
    socket.onopen = () => {
      opened = true;
      const resume = board.stream ? { stream: board.stream, after: board.seq } : {};
      socket.send(JSON.stringify({ type: "open", key: this.key, ...resume }));
    };
    socket.onmessage = ({ data }) => {
      try {
        this.take(JSON.parse(data));
      } catch (error) {
        // The state is fetched as a whole.
        console.error(error);
        board.stream = "";
        socket.close();
      }
    };
    socket.onclose = ({ code }) => this.lost(code, opened);
  },

  take(frame) {
    switch (frame.type) {
      case "hello":
        board.stream = frame.stream;
        board.skew = frame.now - Date.now();
        this.retry = 500;
        $("title").textContent = frame.title;
        document.title = `${frame.title} – Board`;
        this.show("live", "live");
        document.body.dataset.ready = "true";
        if (frame.resumed) output.watch();
        break;
      case "state": applyState(frame); break;
      case "events": for (const event of frame.events) applyEvent(event); break;
      case "output": output.take(frame); break;
      case "reply": {
        const settle = this.replies.get(frame.id);
        this.replies.delete(frame.id);
        settle?.(frame);
        break;
      }
    }
  },

  async lost(code, opened) {
    for (const settle of this.replies.values()) settle({ ok: false, error: { code: "lost", message: "the connection was lost; the outcome is unknown" } });
    this.replies.clear();
    if (code === 4003) return this.refused();
    if (!opened) {
      // A refused upgrade and a dead server look alike to a WebSocket.
      const reached = await fetch("/icon.svg").then((answer) => answer.ok, () => false);
      if (reached) return this.refused();
    }
    this.show("lost", code === 4008 ? "too slow, reconnecting" : "reconnecting");
    setTimeout(() => this.connect(), this.retry);
    this.retry = Math.min(this.retry * 2, 8000);
  },

  refused() {
    document.body.classList.add("closed");
    $("gate").hidden = false;
    this.show("lost", "no access");
  },

  show(state, text) {
    $("link").dataset.state = state;
    $("link").textContent = text;
  },

  // Resolves with the reply; a command is sent once and never repeated.
  send(command) {
    if (this.socket?.readyState !== WebSocket.OPEN) {
      return Promise.resolve({ ok: false, error: { code: "lost", message: "not connected" } });
    }
    const id = `c${this.nextId++}`;
    return new Promise((resolve) => {
      this.replies.set(id, resolve);
      this.socket.send(JSON.stringify({ id, ...command }));
    });
  },
};

// Fetches the messages from before the state, page by page, while the page is usable already.
async function backfill() {
  const stream = board.stream;
  while (board.messages.length && board.messages[0].number > board.firstMessage && board.messages.length < KEPT_MESSAGES) {
    const reply = await link.send({ type: "messages", before: board.messages[0].number, limit: 1000 });
    if (!reply.ok || board.stream !== stream || !reply.messages.length) return;
    if (reply.messages.at(-1).number !== board.messages[0].number - 1) return;
    board.messages = reply.messages.concat(board.messages);
    feed.prepended();
    mark("totals", "flow");
  }
  document.body.dataset.complete = "true";
}

async function command(words, failed) {
  const reply = await link.send(words);
  if (!reply.ok) (failed ?? toast)(reply.error.message);
  return reply.ok;
}

// -------------------------------------------------------------------------------------- rendering

// Parts to draw: in the next frame what the user has asked for, and a little later, together, what
// the agents have changed. So a busy board leaves most frames to the user's input.
const urgent = { parts: new Set(), scheduled: false };
const calm = { parts: new Set(), scheduled: false };
const CALM_MS = 120;

// Calls in the next frame, or a little later without one: a hidden page gets no frames, nor does a
// page that was visible when it asked and is hidden or covered now.
function nextFrame(call) {
  const once = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    call();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, 200);
}

function mark(...parts) {
  for (const part of parts) urgent.parts.add(part);
  if (urgent.scheduled) return;
  urgent.scheduled = true;
  nextFrame(() => draw(urgent));
}

function later(...parts) {
  for (const part of parts) calm.parts.add(part);
  if (calm.scheduled) return;
  calm.scheduled = true;
  setTimeout(() => nextFrame(() => draw(calm)), CALM_MS);
}

// Long lists come one frame after the rest: the answer to a click is on the screen before.
const HEAVY = new Set(["feed", "output", "flow"]);
const heavy = { parts: new Set(), scheduled: false };

function draw(list) {
  list.scheduled = false;
  const parts = [...list.parts];
  list.parts.clear();
  for (const part of parts) {
    if (list !== heavy && HEAVY.has(part)) heavy.parts.add(part);
    else render[part]();
  }
  if (!heavy.parts.size || heavy.scheduled) return;
  heavy.scheduled = true;
  nextFrame(() => setTimeout(() => draw(heavy)));
}

const render = {
  agents: () => agentList.draw(), head: drawHead, to: drawTo, feed: () => feed.draw(),
  needs: drawNeeds, settled: drawSettled, queue: drawQueue, claims: drawClaims,
  snapshots: drawSnapshots, failures: drawFailures, usage: drawUsage, totals: drawTotals,
  flow: () => flow.draw(), flowNodes: () => flow.drawNodes(), output: () => output.draw(), times: drawTimes,
};

const STATES = { starting: "starting", idle: "idle", working: "working", waiting: "needs you", limited: "limited", exited: "exited", unknown: "unknown" };
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
const money = (usd) => (usd === null || usd === undefined ? "–" : usd > 0 && usd < 0.0005 ? "<$0.001" : `$${usd < 0.1 && usd > 0 ? usd.toFixed(3) : usd < 100 ? usd.toFixed(2) : usd.toFixed(0)}`);
const short = (n) => (n < 1000 ? `${n}` : n < 1e6 ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)}k` : `${(n / 1e6).toFixed(1)}M`);
const tokens = (usage) => usage.input_tokens + usage.output_tokens;

function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

// Agents get hues at the golden angle in the order in which they came, so that neighbours differ.
const hues = new Map();
function hue(name) {
  if (!hues.has(name)) hues.set(name, name === "user" ? 225 : (hues.size * 137.5 + 165) % 360);
  return hues.get(name);
}

function initials(name) {
  const words = name.split(/[\s_\-.]+/).filter(Boolean);
  if (words.length > 1 && /^\d{1,3}$/.test(words.at(-1))) return words.at(-1);
  const letters = words.length > 1 ? [words[0], words[1]].map((word) => [...word][0]) : [...(words[0] ?? "?")].slice(0, 2);
  return letters.join("").toUpperCase();
}

function avatar(name, withState) {
  const element = h("span", { class: "avatar", "aria-hidden": "true" }, initials(name), withState ? h("i") : null);
  element.style.setProperty("--hue", hue(name));
  return element;
}

// Puts children in place of the old ones and keeps the focus.
function replace(list, children) {
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.keep : null;
  list.replaceChildren(...children);
  if (focused) list.querySelector(`[data-keep="${CSS.escape(focused)}"]`)?.focus();
}

function counted(id, list, n) {
  $(id).textContent = n ? n : "";
  return list;
}

// ------------------------------------------------------------------------------------ agent list

const agentList = {
  rows: new Map(), dirty: new Set(), order: "",

  draw() {
    const find = view.find.toLowerCase();
    const shown = agentsInOrder().filter((agent) => !find || `${agent.name} ${agent.role} ${agent.kind}`.toLowerCase().includes(find));
    const order = shown.map((agent) => agent.id).join("\n");
    if (order !== this.order || !this.rows.size) {
      this.order = order;
      const rows = new Map();
      rows.set(ALL, this.rows.get(ALL) ?? this.make(ALL));
      for (const agent of shown) rows.set(agent.id, this.rows.get(agent.id) ?? this.make(agent.id));
      this.rows = rows;
      const list = $("agents");
      const focused = document.activeElement;
      list.replaceChildren(...[...rows.values()].map((row) => row.item));
      if (list.contains(focused)) focused.focus();
      for (const id of rows.keys()) this.dirty.add(id);
    }
    for (const id of this.dirty) this.update(id);
    this.dirty.clear();
  },

  make(id) {
    const name = h("span", { class: "name" });
    const cost = h("span", { class: "cost" });
    const word = h("span", { class: "word" });
    const evidence = h("span", { class: "evidence" });
    const all = h("span", { class: "avatar all" }, icon("agents"));
    const button = h("button", { class: "agent", type: "button", "data-agent": id, onclick: () => select(id, true) },
      id === ALL ? all : avatar(nameOf(id), true), name, cost, h("span", { class: "now" }, word, evidence));
    return { item: h("li", {}, button), button, name, cost, word, evidence };
  },

  update(id) {
    const row = this.rows.get(id);
    if (!row) return;
    row.button.setAttribute("aria-current", String(view.agent === id));
    if (id === ALL) {
      row.name.textContent = "All agents";
      row.word.textContent = `${board.agents.size} on the board`;
      return;
    }
    const agent = board.agents.get(id);
    if (!agent) return;
    row.button.dataset.state = agent.state;
    row.name.textContent = agent.name;
    row.cost.textContent = agent.usage.cost_usd === null ? "" : money(agent.usage.cost_usd);
    row.word.textContent = STATES[agent.state] ?? agent.state;
    row.evidence.textContent = ` · ${agent.evidence.detail || agent.kind}`;
    row.button.title = `${agent.name}: ${STATES[agent.state]}\n${agent.evidence.source}: ${agent.evidence.detail}`;
  },

  mark(...ids) {
    for (const id of ids) this.dirty.add(id);
    mark("agents");
  },
};

function select(id, toMain) {
  const before = view.agent;
  view.agent = id;
  store.set(sessionStorage, "agent", id);
  if (id === ALL && view.tab === "output") showTab("messages");
  agentList.mark(before, id);
  feed.reset();
  mark("head", "to", "feed");
  output.watch();
  if (toMain && getComputedStyle($("main")).display === "none") showPane("main");
}

// ------------------------------------------------------------------------------------------- head

function drawHead() {
  const agent = board.agents.get(view.agent);
  $("who").textContent = agent ? agent.name : "All agents";
  const state = $("state");
  state.dataset.state = agent?.state ?? "";
  if (agent) {
    state.replaceChildren(h("span", { class: "word" }, STATES[agent.state]), " for ", time(agent.since, "since"), `, by ${agent.evidence.source}: ${agent.evidence.detail}`);
  } else {
    state.textContent = "Messages as they flow, newest below";
  }
  for (const button of $("actions").children) {
    const act = button.dataset.act;
    button.hidden = !agent?.can.includes(act);
    button.disabled = act === "restart" ? agent?.state !== "exited" && agent?.can.includes("stop")
      // An agent at its limit, or of unknown state, may have a turn.
      : act === "interrupt" ? ["starting", "idle", "exited"].includes(agent?.state) : agent?.state === "exited";
  }
  $("tab-output").disabled = !agent;
  $("flow").style.display = agent ? "none" : "";
  const facts = [];
  const fact = (name, value) => value && facts.push(h("div", {}, h("dt", {}, name), h("dd", { title: value }, value)));
  if (agent) {
    fact("kind", agent.kind);
    fact("role", agent.role);
    fact("where", agent.place);
    fact("restarts", agent.restarts ? String(agent.restarts) : "");
    fact("tokens", tokens(agent.usage) ? `${short(agent.usage.input_tokens)} in, ${short(agent.usage.output_tokens)} out` : "");
  }
  $("facts").replaceChildren(...facts);
}

function drawTo() {
  const select = $("to");
  const chosen = view.agent !== ALL ? view.agent : select.value;
  const able = agentsInOrder().filter((agent) => agent.can.includes("send"));
  const names = able.map((agent) => `${agent.id}\n${agent.name}`).join("\n\n");
  if (select.dataset.names !== names) {
    select.dataset.names = names;
    select.replaceChildren(...able.map((agent) => h("option", { value: agent.id }, agent.name)));
  }
  if (able.some((agent) => agent.id === chosen)) select.value = chosen;
  const off = !able.length || (view.agent !== ALL && select.value !== view.agent);
  for (const id of ["to", "text"]) $(id).disabled = off;
  $("send").disabled = off || sending;
  $("text").placeholder = off ? "This agent takes no messages from here" : `Message to ${nameOf(select.value)}`;
}

function drawTotals() {
  const agents = [...board.agents.values()];
  const working = agents.filter((agent) => agent.state === "working" || agent.state === "starting").length;
  // Many small movements cost frames and tell nothing.
  document.body.classList.toggle("many", agents.length > 16);
  const known = agents.filter((agent) => agent.usage.cost_usd !== null);
  const cost = known.reduce((sum, agent) => sum + agent.usage.cost_usd, 0);
  const limit = board.budgets.find((budget) => budget.agent === null)?.cost_usd;
  $("t-working").textContent = working;
  $("t-agents").textContent = agents.length;
  $("t-messages").textContent = board.messages.at(-1)?.number ?? 0;
  $("t-tokens").textContent = short(agents.reduce((sum, agent) => sum + tokens(agent.usage), 0));
  $("t-cost").textContent = known.length ? money(cost) : "–";
  $("t-limit").textContent = known.length && limit ? ` of ${money(limit)}` : "";
  const open = openPermissions().length;
  document.title = `${open ? `(${open}) ` : ""}${$("title").textContent} – Board`;
}

// ------------------------------------------------------------------------------------------- feed

// A window over the messages: at most MOST rows are in the document, whatever the number of
// messages. While the reader is at the end, the window follows; otherwise it stays, and moves by
// STEP rows when the reader scrolls to one of its edges.
const feed = {
  MOST: 100, STEP: 30,
  items: [], start: 0, end: 0, pinned: true, unseen: 0, rows: new Map(), stale: true, lastTop: 0, touched: -1e9, expanded: new Set(),

  matches(message) {
    if (view.agent !== ALL) {
      const name = nameOf(view.agent);
      const is = (who) => who === name || who === view.agent;
      if (!is(message.from) && !is(message.to)) return false;
    }
    if (!view.find) return true;
    const find = view.find.toLowerCase();
    return message.text.toLowerCase().includes(find) || message.from.toLowerCase().includes(find) || message.to.toLowerCase().includes(find);
  },

  reset() {
    this.stale = true;
    this.pinned = true;
    this.unseen = 0;
    mark("feed");
  },

  // Older messages came: the window keeps its rows.
  prepended() {
    const before = this.items.length;
    this.items = board.messages.filter((message) => this.matches(message));
    const shift = this.items.length - before;
    this.start += shift;
    this.end += shift;
    if (this.pinned) mark("feed");
  },

  added(message) {
    if (this.stale || !this.matches(message)) return;
    this.items.push(message);
    if (!this.pinned) this.unseen += 1;
  },

  draw() {
    const list = $("feed");
    if (this.stale) {
      this.stale = false;
      this.items = board.messages.filter((message) => this.matches(message));
      this.rows.clear();
      list.replaceChildren();
      this.start = this.end = Math.max(0, this.items.length - this.STEP);
    }
    if (this.pinned) {
      const room = Math.max(this.end, this.items.length - this.MOST);
      if (room > this.end) {
        for (const row of this.rows.values()) row.remove();
        this.rows.clear();
        this.start = this.end = room;
      }
      this.append(this.items.length - this.end);
      this.dropTop(this.rows.size - this.MOST);
      list.scrollTop = list.scrollHeight;
    }
    $("latest").hidden = this.pinned;
    $("latest").lastElementChild.textContent = this.unseen ? `${this.unseen} new` : "Latest";
  },

  append(n) {
    const fresh = this.items.slice(this.end, this.end + n);
    this.end += fresh.length;
    $("feed").append(...fresh.map((message) => this.row(message, n < 5)));
  },

  prepend(n) {
    const older = this.items.slice(Math.max(0, this.start - n), this.start);
    this.start -= older.length;
    $("feed").prepend(...older.map((message) => this.row(message, false)));
  },

  dropTop(n) {
    for (; n > 0; n -= 1) {
      this.rows.delete(Number($("feed").firstElementChild.dataset.number));
      $("feed").firstElementChild.remove();
      this.start += 1;
    }
  },

  dropBottom(n) {
    for (; n > 0; n -= 1) {
      this.rows.delete(Number($("feed").lastElementChild.dataset.number));
      $("feed").lastElementChild.remove();
      this.end -= 1;
    }
  },

  scrolled() {
    const list = $("feed");
    const below = list.scrollHeight - list.scrollTop - list.clientHeight;
    if (!list.clientHeight) return;
    // Only a reader who goes up leaves the end: the list also scrolls when rows or the list itself
    // change their size.
    const up = list.scrollTop < this.lastTop && performance.now() - this.touched < 1500;
    this.lastTop = list.scrollTop;
    const atEnd = below < 40 && this.end === this.items.length;
    const pinned = atEnd || (this.pinned && !up);
    if (pinned !== this.pinned) {
      this.pinned = pinned;
      if (pinned) this.unseen = 0;
      mark("feed");
    }
    if (list.scrollTop < 400 && this.start > 0) {
      // Scroll anchoring is switched off: rows above must not move those in view.
      const before = list.scrollHeight;
      this.prepend(this.STEP);
      list.scrollTop += list.scrollHeight - before;
      this.dropBottom(this.rows.size - this.MOST);
    } else if (below < 400 && this.end < this.items.length) {
      this.append(this.STEP);
      const before = list.scrollHeight;
      this.dropTop(this.rows.size - this.MOST);
      list.scrollTop -= before - list.scrollHeight;
    }
  },

  // The list was hidden, which has put it back to its beginning.
  shown() {
    if (this.pinned) $("feed").scrollTop = $("feed").scrollHeight;
  },

  toEnd() {
    this.stale = true;
    this.pinned = true;
    this.unseen = 0;
    mark("feed");
  },

  row(message, fresh) {
    const long = message.text.length > 900 || message.text.split("\n", 12).length > 10;
    const open = this.expanded.has(message.number);
    const text = message.cut ? `${message.text}\n… ${message.cut} more bytes are not shown` : message.text;
    const body = h("div", { class: long && !open ? "body long" : "body" }, text);
    const more = long ? h("button", { class: "more", type: "button", "aria-expanded": String(open), onclick: () => {
      const expand = body.classList.toggle("long") === false;
      expand ? this.expanded.add(message.number) : this.expanded.delete(message.number);
      more.textContent = expand ? "Show less" : "Show all";
      more.setAttribute("aria-expanded", String(expand));
    } }, open ? "Show less" : "Show all") : null;
    const kind = ["task", "result", "error", "info"].includes(message.kind) ? message.kind : "other";
    const row = h("li", { class: fresh ? "msg fresh" : "msg", "data-number": message.number },
      avatar(message.from),
      h("div", {},
        h("header", {}, h("b", {}, message.from), h("span", { class: "to" }, message.to),
          h("span", { class: `kind ${kind}` }, message.kind),
          h("time", { datetime: new Date(message.at).toISOString() }, clock(message.at))),
        body),
      more);
    this.rows.set(message.number, row);
    return row;
  },
};

// ----------------------------------------------------------------------------------------- output

const output = {
  MOST: 400, agent: null, last: 0, lines: [], screen: null, reset: false,

  // Asks for the output of the chosen agent, from the last line that the page has.
  watch() {
    const agent = view.tab === "output" && view.agent !== ALL ? view.agent : null;
    if (agent !== this.agent || this.agent === null) {
      Object.assign(this, { agent, last: 0, lines: [], screen: null, reset: true });
      mark("output");
    }
    link.send({ type: "watch", agent: agent ?? undefined, after: this.last });
  },

  take(frame) {
    if (frame.agent !== this.agent) return;
    for (const line of frame.lines) {
      if (line.number <= this.last) continue;
      this.last = line.number;
      this.lines.push(line);
    }
    if (frame.screen !== undefined) this.screen = frame.screen;
    later("output");
  },

  draw() {
    const box = $("output");
    if (this.reset) {
      this.reset = false;
      box.replaceChildren();
    }
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    if (this.screen !== null) {
      const pre = box.querySelector("pre") ?? box.appendChild(h("pre"));
      if (pre.textContent !== this.screen) pre.textContent = this.screen;
    }
    const fresh = this.lines.splice(0).slice(-this.MOST);
    box.append(...fresh.map((line) => h("div", { class: line.stream }, line.text)));
    while (box.childElementCount > this.MOST) box.firstElementChild.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
    $("output-empty").textContent = this.agent ? "Nothing was printed yet." : "Choose an agent to see what it prints.";
  },
};

function showTab(tab) {
  view.tab = tab;
  store.set(sessionStorage, "tab", tab);
  for (const name of ["messages", "output"]) {
    $(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    $(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
    $(`panel-${name}`).hidden = name !== tab;
  }
  feed.shown();
  output.watch();
  mark("feed");
}

// ------------------------------------------------------------------------------------------- side

const openPermissions = () => [...board.permissions.values()].filter((permission) => !permission.settled);

// A point in time that is counted to or from, once a second.
function time(at, way) {
  return h("span", { "data-at": at, "data-way": way }, span(way === "left" ? at - now() : now() - at));
}

function drawTimes() {
  for (const element of document.querySelectorAll("[data-at]")) {
    const at = Number(element.dataset.at);
    const text = element.dataset.way === "left" ? span(at - now()) : span(now() - at);
    if (element.textContent !== text) element.textContent = text;
  }
}

function drawNeeds() {
  const open = openPermissions();
  const list = $("needs");
  const known = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const [id, item] of known) if (!open.some((permission) => permission.id === id)) item.remove();
  for (const permission of open.slice(0, 50)) {
    if (known.has(permission.id)) continue;
    const answer = (decision) => async (event) => {
      const buttons = event.currentTarget.parentElement.children;
      for (const button of buttons) button.disabled = true;
      // The request stays open if the answer did not arrive.
      if (!(await command({ type: "answer", permission: permission.id, decision }))) for (const button of buttons) button.disabled = false;
    };
    const label = `${permission.tool} for ${nameOf(permission.agent)}`;
    list.append(h("li", { class: "ask", "data-id": permission.id },
      h("div", { class: "row" }, h("b", {}, nameOf(permission.agent)), h("span", {}, permission.tool),
        permission.deadline ? h("span", { class: "end" }, time(permission.deadline, "left")) : null),
      h("pre", { tabindex: "0", "aria-label": "What it wants to do" }, permission.detail),
      h("div", { class: "choice" },
        h("button", { type: "button", "data-answer": "deny", "aria-label": `Deny ${label}`, onclick: answer("deny") }, "Deny"),
        h("button", { type: "button", class: "primary", "data-answer": "allow", "aria-label": `Allow ${label}`, onclick: answer("allow") }, "Allow"))));
  }
  counted("c-needs", null, open.length);
  $("b-needs").textContent = open.length || "";
}

function drawSettled() {
  const settled = [...board.permissions.values()].filter((permission) => permission.settled);
  replace($("settled"), settled.slice(-6).reverse().map(({ settled: end, ...permission }) => h("li", { "data-id": permission.id },
    h("div", { class: "row" }, h("span", { class: `class class-${end.decision ?? "void"}` }, { allow: "allowed", deny: "denied" }[end.decision] ?? "void"),
      h("b", {}, nameOf(permission.agent)), h("span", { class: "end" }, `by ${end.by}`)),
    h("p", { class: "sub mono" }, permission.detail || permission.tool))));
}

function drawQueue() {
  const items = [...board.queue.values()];
  counted("c-queue", null, items.length);
  replace($("queue"), items.slice(0, 50).map((item) => h("li", { "data-id": item.id },
    h("div", { class: "row" }, h("b", {}, `${item.from} → ${nameOf(item.agent)}`),
      h("button", { type: "button", class: "end take-back", "data-keep": item.id, "aria-label": `Take back the message to ${nameOf(item.agent)}`, onclick: () => command({ type: "take_back", item: item.id }) }, "Take back")),
    h("p", { class: "sub" }, item.text))));
}

function drawClaims() {
  const claims = [...board.claims.values()].flat();
  counted("c-claims", null, claims.length);
  replace($("claims"), claims.slice(0, 60).map((claim) => h("li", {},
    h("div", { class: "row" }, h("b", { class: "mono", title: claim.value }, claim.value), h("span", { class: "end" }, time(claim.expires, "left"))),
    h("p", { class: "sub", title: claim.token ? `token ${claim.token}` : null }, `${claim.store}: ${nameOf(claim.session)}`))));
}

function drawSnapshots() {
  const lists = [...board.snapshots.values()].sort((a, b) => b.at(-1).at - a.at(-1).at);
  replace($("snapshots"), lists.slice(0, 30).map((list) => {
    const last = list.at(-1);
    const most = Math.max(...list.map((snapshot) => snapshot.messages), 1);
    const bars = list.slice(-14).map((snapshot, index, shown) => {
      const bar = h("i", { class: index && shown[index - 1].epoch !== snapshot.epoch ? "epoch" : "", title: `tick ${snapshot.tick}, epoch ${snapshot.epoch}, ${clock(snapshot.at)}` });
      bar.style.setProperty("--part", Math.max(0.16, snapshot.messages / most));
      return bar;
    });
    return h("li", {},
      h("div", { class: "row" }, h("b", {}, nameOf(last.agent)),
        h("div", { class: "ticks", role: "img", "aria-label": `${list.length} saved ticks` }, ...bars), h("span", { class: "end" }, `tick ${last.tick}`)),
      h("p", { class: "sub" }, `epoch ${last.epoch}, ${last.messages} messages, ${short(last.bytes)} bytes, `, time(last.at, "since"), " ago"));
  }));
}

function drawFailures() {
  counted("c-failures", null, board.failures.length);
  replace($("failures"), board.failures.slice(-12).reverse().map((failure) => h("li", { "data-number": failure.number },
    h("div", { class: "row" }, h("span", { class: `class class-${failure.class}` }, failure.class.replaceAll("_", " ")), h("b", {}, nameOf(failure.agent)),
      h("span", { class: "end" }, clock(failure.at))),
    h("p", { class: "sub" }, failure.message, failure.resets && failure.resets > now() ? h("span", {}, "\nResets in ", time(failure.resets, "left")) : null))));
}

function drawUsage() {
  const used = [...board.agents.values()].filter((agent) => tokens(agent.usage));
  const all = { name: "All agents", id: null, usage: used.reduce((sum, { usage }) => ({
    input_tokens: sum.input_tokens + usage.input_tokens, output_tokens: sum.output_tokens + usage.output_tokens,
    cost_usd: usage.cost_usd === null ? sum.cost_usd : (sum.cost_usd ?? 0) + usage.cost_usd,
  }), { input_tokens: 0, output_tokens: 0, cost_usd: null }) };
  used.sort((a, b) => (b.usage.cost_usd ?? 0) - (a.usage.cost_usd ?? 0) || tokens(b.usage) - tokens(a.usage));
  const row = (agent) => {
    const budget = board.budgets.find((budget) => budget.agent === agent.id);
    const parts = [];
    if (budget?.cost_usd) parts.push((agent.usage.cost_usd ?? 0) / budget.cost_usd);
    if (budget?.tokens) parts.push(tokens(agent.usage) / budget.tokens);
    const part = Math.max(...parts, 0);
    const bar = h("div", { class: `bar ${part >= 1 ? "over" : part >= 0.8 ? "near" : ""}`, role: "meter", "aria-label": `Budget of ${agent.name}`, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": Math.round(part * 100) }, h("i"));
    bar.style.setProperty("--part", Math.min(part, 1));
    const count = budget?.tokens ? `${short(tokens(agent.usage))} of ${short(budget.tokens)}` : short(tokens(agent.usage));
    const cost = budget?.cost_usd ? `${money(agent.usage.cost_usd)} of ${money(budget.cost_usd)}` : money(agent.usage.cost_usd);
    return h("li", {}, h("div", { class: "row" }, h("b", {}, agent.name), h("span", { class: "end" }, `${count} tokens · ${cost}`)), parts.length ? bar : null);
  };
  replace($("usage"), used.length ? [row(all), ...used.slice(0, 12).map(row)] : []);
}

// ------------------------------------------------------------------------------------------- flow

// Arcs between senders and receivers; the newest message is hot for a moment.
const flow = {
  MOST: 14, pairs: new Map(), nodes: new Map(), names: [], hot: [],

  added(message) {
    const key = [message.from, message.to].sort().join("\n");
    const shown = this.names.includes(message.from) && this.names.includes(message.to);
    const fresh = !shown && this.names.length < this.MOST;
    this.pairs.set(key, (this.pairs.get(key) ?? 0) + 1);
    this.hot.push([message.from, message.to]);
    if (this.hot.length > 4) this.hot.shift();
    later(fresh ? "flow" : "flowNodes");
  },

  draw() {
    const talk = new Map();
    this.pairs = new Map();
    for (const message of board.messages.slice(-400)) {
      for (const who of [message.from, message.to]) talk.set(who, (talk.get(who) ?? 0) + 1);
      const key = [message.from, message.to].sort().join("\n");
      this.pairs.set(key, (this.pairs.get(key) ?? 0) + 1);
    }
    const agents = agentsInOrder().map((agent) => agent.name);
    const known = [...new Set([...talk.keys(), ...agents])].sort((a, b) => (talk.get(b) ?? 0) - (talk.get(a) ?? 0)).slice(0, this.MOST);
    // In the order of the list, the user first.
    const place = (name) => (agents.includes(name) ? agents.indexOf(name) + 1 : 0);
    this.names = known.sort((a, b) => place(a) - place(b));
    const svg = $("flow");
    const width = Math.max(320, svg.clientWidth || 700), base = 84;
    svg.setAttribute("viewBox", `0 0 ${width} 118`);
    const step = width / Math.max(this.names.length, 1);
    const x = (name) => step * (this.names.indexOf(name) + 0.5);
    this.arcs = new Map();
    const parts = [];
    for (const [key, count] of this.pairs) {
      const [a, b] = key.split("\n");
      if (a === b || !this.names.includes(a) || !this.names.includes(b)) continue;
      const [from, to] = [x(a), x(b)].sort((p, q) => p - q);
      const rise = Math.min(72, 16 + (to - from) * 0.16);
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", `M${from} ${base - 8}C${from} ${base - 8 - rise} ${to} ${base - 8 - rise} ${to} ${base - 8}`);
      path.setAttribute("stroke-width", Math.min(4, 1 + Math.log2(count) * 0.5));
      this.arcs.set(key, path);
      parts.push(path);
    }
    this.nodes = new Map();
    for (const name of this.names) {
      const node = document.createElementNS(SVG, "circle");
      node.setAttribute("cx", x(name)); node.setAttribute("cy", base); node.setAttribute("r", 7);
      node.setAttribute("class", "node");
      node.style.setProperty("--hue", hue(name));
      const label = document.createElementNS(SVG, "text");
      label.setAttribute("x", x(name)); label.setAttribute("y", base + 25);
      const room = Math.floor(step / 6.4);
      // Names often differ at their end only.
      const letters = [...name], head = Math.ceil((room - 1) / 2), tail = Math.max(1, room - 1 - head);
      label.textContent = letters.length > room ? `${letters.slice(0, head).join("")}…${letters.slice(-tail).join("")}` : name;
      this.nodes.set(name, node);
      parts.push(node, label);
    }
    svg.replaceChildren(...parts);
    this.drawNodes();
  },

  drawNodes() {
    if (view.agent !== ALL) { this.hot.length = 0; return; }
    const busy = new Set([...board.agents.values()].filter((agent) => agent.state === "working").map((agent) => agent.name));
    for (const [name, node] of this.nodes) node.setAttribute("class", busy.has(name) ? "node busy" : "node");
    for (const [from, to] of this.hot.splice(0)) {
      const path = this.arcs?.get([from, to].sort().join("\n"));
      if (!path) { if (this.nodes.has(from) && this.nodes.has(to) && from !== to) later("flow"); continue; }
      path.setAttribute("class", "");
      void path.getBoundingClientRect();
      path.setAttribute("class", "hot");
      const spark = document.createElementNS(SVG, "circle");
      spark.setAttribute("r", 3.5);
      spark.setAttribute("class", "spark");
      spark.style.offsetPath = `path("${path.getAttribute("d")}")`;
      if (this.names.indexOf(from) > this.names.indexOf(to)) spark.style.animationDirection = "reverse";
      spark.addEventListener("animationend", () => spark.remove());
      if ($("flow").querySelectorAll(".spark").length < 8) $("flow").append(spark);
    }
  },
};

// ---------------------------------------------------------------------------------------- actions

function toast(text) {
  const note = h("p", {}, text);
  $("toasts").append(note);
  while ($("toasts").childElementCount > 4) $("toasts").firstElementChild.remove();
  setTimeout(() => note.remove(), 7000);
}

function showPane(pane) {
  document.body.dataset.pane = pane;
  for (const button of document.querySelectorAll(".bottom button")) {
    if (button.dataset.pane === pane) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  feed.shown();
  mark("feed", "flow");
}

for (const button of document.querySelectorAll(".bottom button")) button.addEventListener("click", () => showPane(button.dataset.pane));

$("actions").addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { act } = button.dataset;
  if (act === "stop" && !(button.classList.contains("sure") && button.dataset.agent === view.agent)) {
    // A second press within four seconds confirms, for the same agent.
    button.classList.add("sure");
    button.lastChild.textContent = "Really stop?";
    button.dataset.agent = view.agent;
    setTimeout(() => { button.classList.remove("sure"); button.lastChild.textContent = "Stop"; }, 4000);
    return;
  }
  await command({ type: act, agent: view.agent });
});

// A message is sent once, also if Enter is pressed again before its reply.
let sending = false;
$("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("text").value;
  const agent = $("to").value;
  if (sending || !text.trim() || !agent) return;
  $("compose-error").textContent = "";
  sending = true;
  mark("to");
  const sent = await command({ type: "send", agent, text }, (message) => { $("compose-error").textContent = `Not sent: ${message}`; });
  sending = false;
  mark("to");
  if (sent && $("text").value === text) {
    $("text").value = "";
    store.set(sessionStorage, "draft", "");
  }
});

$("text").addEventListener("input", () => store.set(sessionStorage, "draft", $("text").value));
$("text").addEventListener("keydown", (event) => {
  // A composition of characters (IME) ends with Enter, too.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("to").addEventListener("change", () => { if (view.agent !== ALL) select($("to").value); else mark("to"); });

let finding = 0;
$("find").addEventListener("input", () => {
  // Many messages are searched: not once a key, but once a pause.
  clearTimeout(finding);
  finding = setTimeout(() => {
    view.find = $("find").value.trim();
    feed.reset();
    mark("agents", "feed");
  }, 120);
});

$("feed").addEventListener("scroll", () => feed.scrolled(), { passive: true });
for (const kind of ["wheel", "touchmove", "pointerdown", "pointermove", "keydown"]) {
  $("feed").addEventListener(kind, (event) => { if (kind !== "pointermove" || event.buttons) feed.touched = performance.now(); }, { passive: true });
}
$("latest").addEventListener("click", () => feed.toEnd());
for (const name of ["messages", "output"]) {
  $(`tab-${name}`).addEventListener("click", () => showTab(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = name === "messages" ? "output" : "messages";
    if ($(`tab-${other}`).disabled) return;
    showTab(other);
    $(`tab-${other}`).focus();
  });
}

function move(by) {
  const ids = [...agentList.rows.keys()];
  const next = ids[Math.min(ids.length - 1, Math.max(0, ids.indexOf(view.agent) + by))];
  select(next);
  agentList.rows.get(next).button.focus();
}

$("agents").addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  move(by);
});

document.addEventListener("keydown", (event) => {
  const field = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && field) return event.target.blur();
  if (field || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const act = {
    j: () => move(1), k: () => move(-1), 0: () => select(ALL),
    o: () => view.agent !== ALL && showTab(view.tab === "output" ? "messages" : "output"),
    m: () => { showPane("main"); $("text").focus(); },
    "/": () => { if (innerWidth <= 700) showPane("agents"); $("find").focus(); },
    p: () => { if (openPermissions().length) { showPane("side"); $("needs").querySelector("pre").focus(); } },
    "?": () => $("keys").showModal(),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
$("keys-open").addEventListener("click", () => $("keys").showModal());

const THEMES = ["", "light", "dark"];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  store.set(localStorage, "board-theme", theme);
  $("theme").title = { "": "Colours as the system", light: "Light", dark: "Dark" }[theme];
}
$("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3]));
setTheme(THEMES.includes(store.get(localStorage, "board-theme")) ? store.get(localStorage, "board-theme") : "");

addEventListener("resize", () => mark("flow", "feed"));
new ResizeObserver(() => feed.shown()).observe($("feed"));
document.addEventListener("visibilitychange", () => mark("totals"));
setInterval(() => { if (!document.hidden) mark("times"); }, 1000);

$("text").value = store.get(sessionStorage, "draft") ?? "";
showTab(view.tab);
// A second link in the same tab: only the fragment changes, and nothing is loaded.
addEventListener("hashchange", () => { if (location.hash.includes("token=")) location.reload(); });
link.start().catch(() => link.show("lost", "the board is not running"));
