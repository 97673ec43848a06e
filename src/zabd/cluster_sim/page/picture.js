"use strict";
// Draws one record (see record.py). Events are columns: record.at[i], record.lane[i], and so on.
(() => {
const record = JSON.parse(document.getElementById("record").textContent);
const { at, lane, kind, label, cause, sent, spans, lanes, laneKinds } = record;
const count = at.length;
const $ = (id) => document.getElementById(id);
const canvas = $("picture"), pen = canvas.getContext("2d");
const dark = matchMedia("(prefers-color-scheme: dark)");

// --- what each kind looks like: a shape and a colour, so that neither has to be seen alone --------
// Colours are Okabe and Ito's, which people with any kind of colour vision can tell apart.
const BLUE = ["#0072b2", "#56b4e9"], SKY = ["#2b8cc4", "#8fd0f5"], GREEN = ["#00805d", "#2fd0a0"];
const ORANGE = ["#b87800", "#f0b030"], RED = ["#c04a00", "#ff8a4a"], PURPLE = ["#a84f80", "#e79ac4"];
const GREY = ["#6b7580", "#8e9aa6"], INK = ["#1b1f24", "#e8ecf1"];
const KINDS = {
  violation: ["✖", RED, "broken invariant"], note: ["flag", INK, "what the lesson says"], fault: ["bolt", RED, "fault"], life: ["cross", RED, "start, crash"],
  role: ["hexagon", BLUE, "role, phase, epoch"], commit: ["star", GREEN, "commit"],
  deliver: ["hollow star", GREEN, "delivery"], message: ["disc", BLUE, "message"],
  hears: ["small disc", BLUE, "message taken"], vote: ["ring", PURPLE, "vote"],
  fsync: ["square", ORANGE, "fsync"], disk: ["hollow square", ORANGE, "disk operation"],
  timer: ["tick", GREY, "timer"], says: ["dot", GREY, "what it says"], link: ["dash", GREY, "connection"],
  ask: ["right", SKY, "request"], reply: ["left", SKY, "reply"], watch: ["diamond", PURPLE, "watch fired"],
  session: ["hollow diamond", ORANGE, "session"], lock: ["key", GREEN, "lock"], fence: ["shield", RED, "fencing token"],
};
const HIDDEN_AT_FIRST = new Set(["link", "disk", "timer", "says"]);
const RANK = ["violation", "note", "fault", "life", "role", "commit", "lock", "fence", "watch", "session", "reply", "ask", "message", "fsync", "vote", "deliver"];
const EPOCHS = ["#8fc9ee", "#f3c463", "#7fd8b9", "#f0a3cb", "#f4e88a", "#f0986a", "#b9b6f0", "#c9d2da"];
const SPANS = { down: "crossed", paused: "striped", session: "thin", lock: "thick", cut: "dashed" };

const tint = (pair) => pair[dark.matches ? 1 : 0];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const look = (k) => KINDS[k] || KINDS.says;
let paper, ink, soft, line;
function readColours() { paper = css("--paper"); ink = css("--ink"); soft = css("--soft"); line = css("--line"); }

// --- filters, and where things are ------------------------------------------------------------------
const kindsHere = [...new Set(kind)].sort((a, b) => Object.keys(KINDS).indexOf(a) - Object.keys(KINDS).indexOf(b));
const shownKinds = new Set(kindsHere.filter((k) => !HIDDEN_AT_FIRST.has(k)));
const shownLanes = new Set(lanes.map((_, i) => i));
let visible = [];              // the events that the filters let through, in order
let place = new Int32Array(count); // of each event: how many visible ones are before it
let rows = [];                 // the lanes that are shown
let row = [];                  // of each lane: its row, or -1
let bySent = [];               // visible messages, in the order of sending
let trueTime = false;

function filter() {
  visible = [];
  for (let i = 0; i < count; i++) {
    place[i] = visible.length;
    if (shownKinds.has(kind[i]) && shownLanes.has(lane[i])) visible.push(i);
  }
  rows = lanes.map((_, i) => i).filter((i) => shownLanes.has(i));
  row = lanes.map((_, i) => rows.indexOf(i));
  bySent = visible.filter(isMessage).sort((a, b) => sent[a] - sent[b]);
  $("count").textContent = `${visible.length.toLocaleString("en")} of ${count.toLocaleString("en")} events shown`;
}
const isMessage = (i) => sent[i] >= 0 && cause[i] >= 0 && lane[cause[i]] !== lane[i];

function lower(array, value, of) { // the first index whose of(element) >= value
  let from = 0, to = array.length;
  while (from < to) { const mid = (from + to) >> 1; if (of(array[mid]) < value) from = mid + 1; else to = mid; }
  return from;
}
// A unit of the axis is a microsecond, or one visible event.
const unitOf = (i) => (trueTime ? at[i] : place[i]);
function unitAtTime(us) {
  if (trueTime) return us;
  const k = lower(visible, us, (i) => at[i]);
  return k - 0.5;
}
const unitSent = (i) => {
  const c = cause[i];
  // Sent by a visible event and at its instant: the line starts there.
  if (shownKinds.has(kind[c]) && shownLanes.has(lane[c]) && (!trueTime || at[c] === sent[i])) return unitOf(c);
  return unitAtTime(sent[i]);
};
let origin = 0, scale = 14;     // the unit at the left edge, and pixels per unit
let width = 0, height = 0, left = 74;
const TOP = 26;
const x = (unit) => left + (unit - origin) * scale;
const unitAt = (px) => origin + (px - left) / scale;
const step = () => Math.max(30, Math.min(124, (height - TOP - 16) / Math.max(1, rows.length)));
let scroll = 0;
const y = (laneNumber) => TOP + (row[laneNumber] + 0.5) * step() - scroll;
const extent = () => (trueTime ? [at[0] || 0, (at[count - 1] || 0) + 1] : [0, Math.max(1, visible.length)]);

// --- why: the causal past ---------------------------------------------------------------------------
const before = new Int32Array(count).fill(-1); // the event before on the same lane
{ const last = new Map(); for (let i = 0; i < count; i++) { before[i] = last.has(lane[i]) ? last.get(lane[i]) : -1; last.set(lane[i], i); } }
const led = new Map();          // what each event directly led to
for (let i = 0; i < count; i++) if (cause[i] >= 0) { if (!led.has(cause[i])) led.set(cause[i], []); led.get(cause[i]).push(i); }

function chainOf(i) {           // the direct causes, one after the other
  const chain = []; const seen = new Set([i]);
  for (let c = cause[i]; c >= 0 && !seen.has(c) && chain.length < 400; c = cause[c]) { chain.push(c); seen.add(c); }
  return chain;
}
function pastOf(i) {            // everything that happened before it (Lamport)
  const past = new Uint8Array(count); const todo = [i];
  while (todo.length) {
    const e = todo.pop();
    if (past[e]) continue;
    past[e] = 1;
    if (cause[e] >= 0) todo.push(cause[e]);
    if (before[e] >= 0 && laneKinds[lane[e]] !== "run") todo.push(before[e]);
  }
  return past;
}

// --- members' states ----------------------------------------------------------------------------------
const states = new Map();       // lane: [[event, change], ...]
for (const [event, which, change] of record.states) { if (!states.has(which)) states.set(which, []); states.get(which).push([event, change]); }
const KEEP = 120, EVERY = 64;
const checkpoints = new Map();
function stateAt(which, event) {
  const changes = states.get(which) || [];
  const upTo = lower(changes, event + 1, (c) => c[0]);
  if (!checkpoints.has(which)) checkpoints.set(which, [{ log: [], base: "0:0" }]);
  const marks = checkpoints.get(which);
  let k = Math.min(Math.floor(upTo / EVERY), marks.length - 1);
  let state = { ...marks[k], log: [...marks[k].log] };
  for (let i = k * EVERY; i < upTo; i++) {
    apply(state, changes[i][1]);
    if ((i + 1) % EVERY === 0 && marks.length === (i + 1) / EVERY) marks.push({ ...state, log: [...state.log] });
  }
  return state;
}
function apply(state, change) {
  for (const key of Object.keys(change)) {
    if (key === "log+") { state.log.push(...change[key]); if (state.log.length > KEEP) state.log.splice(0, state.log.length - KEEP); }
    else if (key === "log") state.log = [...change.log];
    else state[key] = change[key];
  }
}
const zxid = (text) => { const [e, c] = String(text || "0:0").split(":"); return [Number(e), Number(c)]; };
const notAfter = (a, b) => { const [e, c] = zxid(a), [f, d] = zxid(b); return e < f || (e === f && c <= d); };

// --- drawing -------------------------------------------------------------------------------------------
let chosen = -1, hovered = -1, past = null, chain = new Set();
let pending = false;
function draw() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } }

function paint() {
  readColours();
  pen.font = "600 13px system-ui, sans-serif";
  left = Math.max(74, ...rows.map((which) => pen.measureText(lanes[which]).width + 24));
  const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  width = box.width; height = box.height;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = paper; pen.fillRect(0, 0, width, height);
  const from = unitAt(left - 30), to = unitAt(width + 30);
  paintLanes(); paintSpans(from, to); paintMessages(from, to); paintEvents(from, to); paintCursor(); paintNames(); paintAxis(from, to);
}
function paintLanes() {
  pen.lineWidth = 1; pen.strokeStyle = line;
  for (const which of rows) { pen.beginPath(); pen.moveTo(left, y(which)); pen.lineTo(width, y(which)); pen.stroke(); }
}
function paintNames() {
  pen.fillStyle = paper; pen.fillRect(0, 0, left - 2, height);
  pen.textBaseline = "middle"; pen.textAlign = "right"; pen.font = "600 13px system-ui, sans-serif";
  for (const which of rows) {
    pen.fillStyle = ink; pen.fillText(lanes[which], left - 12, y(which) - 1);
    const role = chosen >= 0 && states.has(which) ? stateAt(which, chosen).role : laneKinds[which] === "member" ? "" : laneKinds[which] === "run" ? "faults" : laneKinds[which];
    if (role) { pen.font = "11px system-ui, sans-serif"; pen.fillStyle = soft; pen.fillText(role, left - 12, y(which) + 13); pen.font = "600 13px system-ui, sans-serif"; }
  }
}
function paintAxis(from, to) {
  pen.fillStyle = paper; pen.fillRect(0, 0, width, TOP - 4);
  pen.strokeStyle = line; pen.beginPath(); pen.moveTo(0, TOP - 4.5); pen.lineTo(width, TOP - 4.5); pen.stroke();
  pen.fillStyle = soft; pen.font = "11px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "middle";
  const gap = 110;
  if (trueTime) {
    const raw = gap / scale, power = 10 ** Math.floor(Math.log10(raw));
    const every = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= raw);
    for (let u = Math.max(0, Math.ceil(from / every) * every); u < to; u += every) tickAt(x(u), u);
  } else {
    const every = Math.max(1, Math.ceil(gap / scale));
    for (let k = Math.max(0, Math.ceil(from / every) * every); k < Math.min(to, visible.length); k += every) tickAt(x(k), at[visible[k]]);
  }
}
function tickAt(px, us) {
  if (px < left - 1) return;
  pen.fillStyle = soft; pen.fillRect(px, TOP - 9, 1, 5); pen.fillText(clock(us), px + 3, TOP - 15);
}
const clock = (us) => `${(us / 1000).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;

function paintSpans(from, to) {
  const stacked = new Map();
  for (const [which, begun, ended, what, text] of spans) {
    if (row[which] < 0) continue;
    const a = unitAtTime(begun), b = unitAtTime(ended);
    if (b < from || a > to) continue;
    const how = SPANS[what.split(" ")[0]] || "thin";
    const x0 = Math.max(left - 2, x(a)), x1 = Math.min(width + 2, Math.max(x(b), x(a) + 2)), mid = y(which), half = Math.min(17, step() * 0.34);
    pen.save(); pen.beginPath();
    if (how === "crossed" || how === "striped") {
      pen.rect(x0, mid - half, x1 - x0, half * 2); pen.clip();
      pen.fillStyle = tint(how === "crossed" ? RED : GREY); pen.globalAlpha = dark.matches ? 0.24 : 0.14; pen.fillRect(x0, mid - half, x1 - x0, half * 2);
      pen.globalAlpha = 0.55; pen.strokeStyle = pen.fillStyle; pen.lineWidth = 1; pen.beginPath();
      const phase = ((x(a) % 9) + 9) % 9;
      for (let s = x0 - half * 2 - 9 + phase - (x0 % 9); s < x1 + 9; s += 9) { pen.moveTo(s, mid + half); pen.lineTo(s + half * 2, mid - half); if (how === "crossed") { pen.moveTo(s, mid - half); pen.lineTo(s + half * 2, mid + half); } }
      pen.stroke();
    } else if (how === "dashed") {
      const level = (stacked.get(which + what) ?? (() => { const n = [...stacked.keys()].filter((k) => k.startsWith(`${which}c`)).length; stacked.set(which + what, n); return n; })());
      const top = mid - half - 1 + level * 4;
      pen.strokeStyle = tint(RED); pen.lineWidth = 2; pen.setLineDash([5, 4]); pen.moveTo(x0, top); pen.lineTo(x1, top); pen.stroke();
    } else {
      pen.fillStyle = tint(how === "thick" ? GREEN : ORANGE); pen.globalAlpha = how === "thick" ? 0.55 : 0.4;
      pen.fillRect(x0, mid + half - (how === "thick" ? 6 : 2), x1 - x0, how === "thick" ? 6 : 3);
    }
    pen.restore();
    if (x1 - x0 > 60 && !what.startsWith("session")) {
      pen.font = "10.5px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "alphabetic"; pen.fillStyle = soft;
      const offset = how === "dashed" ? -half - 4 : how === "thick" ? half + 10 : -half + 11;
      if (how !== "dashed" || !stacked.get(which + what)) pen.fillText(fitted(text, x1 - x0 - 6), x0 + 3, mid + offset);
    }
  }
}
function fitted(text, room) {
  if (pen.measureText(text).width <= room) return text;
  const keep = Math.max(0, Math.floor((text.length * room) / pen.measureText(text).width) - 1);
  return keep < 3 ? "" : `${text.slice(0, keep)}…`;
}

function strength(i) { // how plainly an event is drawn: the causal past of the chosen one, or all
  if (i === chosen || i === hovered) return 1;
  if (!past || !$("cone").checked) return 0.9;
  return chain.has(i) ? 1 : past[i] ? 0.8 : 0.16;
}
const LINES_MAX = 1500;
function paintMessages(from, to) {
  const lines = new Set();
  for (let k = lower(visible, from, unitOf); k < visible.length && unitOf(visible[k]) <= to; k++) if (isMessage(visible[k])) lines.add(visible[k]);
  const [t0, t1] = trueTime ? [from, to] : [at[visible[Math.max(0, Math.floor(from))]] ?? 0, at[visible[Math.min(visible.length - 1, Math.ceil(to))]] ?? Infinity];
  for (let k = lower(bySent, t0, (i) => sent[i]); k < bySent.length && sent[bySent[k]] <= t1; k++) lines.add(bySent[k]);
  const thin = lines.size > LINES_MAX ? Math.ceil(lines.size / LINES_MAX) : 1;
  let n = 0;
  for (const i of lines) {
    if (row[lane[cause[i]]] < 0 || (thin > 1 && n++ % thin && !chain.has(i))) continue;
    paintLine(i, Math.min(1, strength(i) * (i === chosen || i === hovered || chain.has(i) ? 1 : thin > 1 ? 0.25 : 0.5)));
  }
}
function paintLine(i, alpha) {
  const x0 = x(unitSent(i)), y0 = y(lane[cause[i]]), x1 = x(unitOf(i)), y1 = y(lane[i]);
  pen.globalAlpha = alpha; pen.strokeStyle = pen.fillStyle = tint(look(kind[i])[1]);
  pen.lineWidth = chain.has(i) || i === chosen || i === hovered ? 2.2 : 1.1;
  pen.setLineDash(kind[i] === "vote" ? [4, 3] : kind[i] === "link" ? [2, 3] : []);
  pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); pen.setLineDash([]);
  const length = Math.hypot(x1 - x0, y1 - y0);
  if (length > 24) { // an arrow's head, a little before the glyph
    const a = Math.atan2(y1 - y0, x1 - x0), tx = x1 - Math.cos(a) * 6, ty = y1 - Math.sin(a) * 6;
    pen.beginPath(); pen.moveTo(tx, ty); pen.lineTo(tx - 8 * Math.cos(a - 0.36), ty - 8 * Math.sin(a - 0.36)); pen.lineTo(tx - 8 * Math.cos(a + 0.36), ty - 8 * Math.sin(a + 0.36)); pen.fill();
  }
  pen.globalAlpha = 1;
}
function paintEvents(from, to) {
  const begin = Math.max(0, lower(visible, from, unitOf)), taken = new Map();
  let labelled = new Map();
  const end = lower(visible, to, unitOf), dense = (end - begin) > width; // several events on each pixel
  for (let k = begin; k < end; k++) {
    const i = visible[k], px = Math.round(x(unitOf(i)));
    if (dense) { // one glyph for each pixel of each lane: the most telling kind
      const spot = lane[i] * 100000 + (px >> 2), rank = RANK.indexOf(kind[i]);
      if (taken.has(spot) && (rank < 0 || taken.get(spot) <= rank)) continue;
      taken.set(spot, rank < 0 ? 99 : rank);
    }
    glyph(pen, look(kind[i])[0], px, y(lane[i]), tint(look(kind[i])[1]), strength(i));
  }
  if (scale >= 34 && !trueTime) for (let k = begin; k < end; k++) paintLabel(visible[k], labelled);
}
function paintLabel(i, labelled) { // texts where there is room, one below the other in turn
  const px = x(unitOf(i)), which = lane[i];
  const room = scale * 3;
  if (px < (labelled.get(which) ?? -Infinity)) return;
  pen.globalAlpha = Math.max(0.3, strength(i)); pen.font = "10.5px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "alphabetic";
  pen.fillStyle = soft;
  const text = fitted(short(i), room - 10);
  if (text) { pen.fillText(text, px + 7, y(which) - 7); labelled.set(which, px + Math.min(room, pen.measureText(text).width + 14)); }
  pen.globalAlpha = 1;
}
const short = (i) => label[i].replace(/^from (\w+): /, "");
function glyph(pen, shape, px, py, colour, alpha) {
  pen.globalAlpha = alpha; pen.fillStyle = colour; pen.strokeStyle = colour; pen.lineWidth = 1.6; pen.beginPath();
  const poly = (...points) => { points.forEach(([dx, dy], n) => (n ? pen.lineTo(px + dx, py + dy) : pen.moveTo(px + dx, py + dy))); pen.closePath(); };
  const hollow = () => { pen.fillStyle = paper; pen.fill(); pen.stroke(); };
  const star = (r) => { const p = []; for (let n = 0; n < 10; n++) { const a = -Math.PI / 2 + (n * Math.PI) / 5, q = n % 2 ? r * 0.45 : r; p.push([Math.cos(a) * q, Math.sin(a) * q]); } poly(...p); };
  switch (shape) {
    case "disc": pen.arc(px, py, 4.2, 0, 7); pen.fill(); break;
    case "small disc": pen.arc(px, py, 2.8, 0, 7); pen.fill(); break;
    case "ring": pen.arc(px, py, 3.6, 0, 7); hollow(); break;
    case "square": pen.rect(px - 3.8, py - 3.8, 7.6, 7.6); pen.fill(); break;
    case "hollow square": pen.rect(px - 3, py - 3, 6, 6); hollow(); break;
    case "tick": pen.moveTo(px, py - 6); pen.lineTo(px, py + 6); pen.stroke(); break;
    case "dash": pen.moveTo(px - 3, py); pen.lineTo(px + 3, py); pen.stroke(); break;
    case "dot": pen.arc(px, py, 1.9, 0, 7); pen.fill(); break;
    case "right": poly([-4, -5], [5, 0], [-4, 5]); pen.fill(); break;
    case "left": poly([4, -5], [-5, 0], [4, 5]); pen.fill(); break;
    case "diamond": poly([0, -6], [5, 0], [0, 6], [-5, 0]); pen.fill(); break;
    case "hollow diamond": poly([0, -6], [5, 0], [0, 6], [-5, 0]); hollow(); break;
    case "hexagon": poly([-3.5, -6], [3.5, -6], [7, 0], [3.5, 6], [-3.5, 6], [-7, 0]); pen.fill(); break;
    case "star": star(8); pen.fill(); break;
    case "hollow star": star(6); hollow(); break;
    case "flag": pen.rect(px - 1, py - 8, 2, 16); pen.rect(px - 1, py - 8, 9, 7); pen.fill(); break;
    case "bolt": poly([1, -8], [-5, 2], [-1, 2], [-2, 8], [5, -2], [1, -2]); pen.fill(); break;
    case "cross": pen.lineWidth = 2.6; pen.moveTo(px - 5, py - 5); pen.lineTo(px + 5, py + 5); pen.moveTo(px + 5, py - 5); pen.lineTo(px - 5, py + 5); pen.stroke(); break;
    case "key": pen.arc(px - 3, py, 3.6, 0, 7); pen.rect(px + 0.5, py - 1.2, 7, 2.4); pen.rect(px + 5, py, 2, 4); pen.fill(); break;
    case "shield": poly([-5, -6], [5, -6], [5, 0], [0, 7], [-5, 0]); hollow(); break;
    default: pen.lineWidth = 3.4; pen.moveTo(px - 7, py - 7); pen.lineTo(px + 7, py + 7); pen.moveTo(px + 7, py - 7); pen.lineTo(px - 7, py + 7); pen.stroke(); pen.lineWidth = 1.6; pen.beginPath(); pen.arc(px, py, 11, 0, 7); pen.stroke();
  }
  pen.globalAlpha = 1;
}
function paintCursor() {
  if (chosen < 0) return;
  const px = x(unitOf(chosen));
  if (px < left) return;
  pen.strokeStyle = css("--focus"); pen.lineWidth = 1; pen.setLineDash([3, 3]); pen.beginPath(); pen.moveTo(px + 0.5, TOP - 4); pen.lineTo(px + 0.5, height); pen.stroke(); pen.setLineDash([]);
  if (row[lane[chosen]] >= 0) { pen.lineWidth = 2; pen.beginPath(); pen.arc(px, y(lane[chosen]), 11, 0, 7); pen.stroke(); }
}

// --- the panel ------------------------------------------------------------------------------------------
function element(name, text, attributes = {}) { const e = document.createElement(name); if (text !== undefined) e.textContent = text; for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); return e; }
function list(title, events, host) {
  if (!events.length) return;
  host.append(element("h3", title));
  const ol = element("ol");
  for (const i of events) {
    const li = element("li"), button = element("button");
    button.append(element("small", `${lanes[lane[i]]} ${clock(at[i])}`), document.createTextNode(label[i]));
    button.addEventListener("click", () => choose(i));
    li.append(button); ol.append(li);
  }
  host.append(ol);
}
function showEvent() {
  const host = $("event"); host.replaceChildren();
  if (chosen < 0) { host.append(element("p", "Click an event, or step with the arrow keys.")); return; }
  host.append(element("h2", `${lanes[lane[chosen]]}: ${label[chosen]}`));
  const took = sent[chosen] >= 0 ? `, ${clock(at[chosen] - sent[chosen])} after it was ${isMessage(chosen) ? "sent" : kind[chosen] === "timer" ? "set" : "asked for"}` : "";
  host.append(element("p", `${look(kind[chosen])[2]}, at ${clock(at[chosen])}${took}; event ${chosen + 1} of ${count}`));
  const told = [...chain].filter((i) => i !== chosen && kind[i] !== "says");
  const why = told.filter((i, n) => kind[i] !== "timer" || !n || kind[told[n - 1]] !== "timer"); // one of a row of timers
  list("Why: it happened because of", why.slice(0, 14), host);
  if (why.length > 14) host.append(element("p", `and ${why.length - 14} more, back to the beginning`));
  const size = past.reduce((sum, one) => sum + one, 0) - 1;
  host.append(element("p", `${size.toLocaleString("en")} events are in its causal past.`));
  list("It directly led to", (led.get(chosen) || []).slice(0, 8), host);
}
function showMembers() {
  const host = $("members"); host.replaceChildren();
  if (chosen < 0) return;
  host.append(element("h3", `The members after this event`));
  lanes.forEach((name, which) => { if (states.has(which)) host.append(memberCard(name, which)); });
}
function memberCard(name, which) {
  const s = stateAt(which, chosen), card = element("div", undefined, { class: "member" }), head = element("header");
  head.append(element("b", name), element("span", s.serving ? `${s.role}, serving` : s.role || "", { class: `role ${s.role}` }), element("small", s.phase || ""));
  card.append(head);
  if (s.accepted !== undefined) {
    const leader = s.leader ? `follows ${s.leader}` : "";
    card.append(element("small", [`epoch ${s.current} current, ${s.accepted} accepted`, s.role === "leading" ? "" : leader].filter(Boolean).join("; ")));
    card.append(logOf(s));
    const tree = s.nodes === undefined ? "" : `; tree: ${s.nodes} znodes, ${s.sessions} sessions, digest ${s.digest.slice(0, 8)}`;
    card.append(element("small", `logged ${s.logged}, durable ${s.durable}, committed ${s.committed}, delivered ${s.delivered}${tree}`));
  }
  return card;
}
const CELLS = 22;
function logOf(s) {
  const ol = element("ol", undefined, { class: "log", "aria-label": "log: the ends of its batches" });
  ol.append(element("li", s.log.length > CELLS ? `${s.log.length - CELLS} before` : s.base === "0:0" ? "log" : `≤${s.base}`, { class: "base" }));
  for (const cell of s.log.slice(-CELLS)) {
    const [epoch] = zxid(cell), durable = s.durable === undefined || notAfter(cell, s.durable), committed = notAfter(cell, s.committed);
    const li = element("li", cell, { class: [durable ? "" : "volatile", committed ? "committed" : ""].join(" ").trim(), title: `${cell}: ${durable ? "durable" : "not durable yet"}, ${committed ? "committed" : "not known to be committed"}` });
    li.style.background = EPOCHS[(epoch - 1 + EPOCHS.length * 9) % EPOCHS.length];
    ol.append(li);
  }
  return ol;
}

// --- choosing, stepping, moving -------------------------------------------------------------------------
function choose(i, quietly) {
  chosen = i;
  past = i < 0 ? null : pastOf(i); chain = i < 0 ? new Set() : new Set([i, ...chainOf(i)]);
  if (i >= 0) {
    $("slider").value = String(place[i]); $("clock").textContent = clock(at[i]);
    $("slider").setAttribute("aria-valuetext", `${clock(at[i])}: ${lanes[lane[i]]} ${label[i]}`);
    $("said").textContent = `${lanes[lane[i]]}, ${clock(at[i])}: ${label[i]}`;
    if (!quietly) bringIntoView(i);
  }
  showEvent(); showMembers(); draw();
}
function bringIntoView(i) {
  const px = x(unitOf(i)), room = width - left;
  if (px < left + 40 || px > width - 60) origin = unitOf(i) - (room * 0.6) / scale;
  clampOrigin();
}
function clampOrigin() {
  const [a, b] = extent(), room = (width - left) / scale;
  origin = Math.min(Math.max(origin, a - room * 0.1), Math.max(a - room * 0.1, b - room * 0.8));
}
function stepBy(by, sameLane) {
  if (!visible.length) return;
  let k = chosen < 0 ? (by > 0 ? -1 : visible.length) : place[chosen] - (by < 0 ? 0 : shown(chosen) ? 0 : 1);
  do { k += by; } while (k >= 0 && k < visible.length && sameLane && lane[visible[k]] !== lane[chosen]);
  if (k >= 0 && k < visible.length) choose(visible[k]);
}
const shown = (i) => visible[place[i]] === i;
function toLane(by) {
  const here = chosen < 0 ? -1 : row[lane[chosen]], target = rows[here + by];
  if (target === undefined) return;
  const mid = chosen < 0 ? 0 : place[chosen];
  for (let d = 0; d < visible.length; d++) for (const k of [mid - d, mid + d]) if (k >= 0 && k < visible.length && lane[visible[k]] === target) { choose(visible[k]); return; }
}
function zoomPoint() { // what is chosen stays where it is, if it is to be seen
  const px = chosen < 0 ? -1 : x(unitOf(chosen));
  return px >= left && px <= width ? px : left + (width - left) / 2;
}
function zoom(factor, px = zoomPoint()) {
  const unit = unitAt(px);
  scale = Math.min(trueTime ? 20 : 120, Math.max((width - left) / (extent()[1] - extent()[0]) * 0.9, scale * factor));
  origin = unit - (px - left) / scale; clampOrigin(); draw();
}
function fit() { const [a, b] = extent(); scale = ((width - left) * 0.96) / (b - a); origin = a - (b - a) * 0.01; draw(); }
function nearest(px, py) {
  let best = -1, least = 15;
  for (let k = Math.max(0, lower(visible, unitAt(px - 14), unitOf)); k < visible.length; k++) {
    const i = visible[k], dx = x(unitOf(i)) - px;
    if (dx > 14) break;
    const d = Math.hypot(dx, (y(lane[i]) - py) * 0.7);
    if (d < least) { least = d; best = i; }
  }
  return best;
}
function find(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return;
  const begin = chosen < 0 ? 0 : place[chosen] + 1;
  for (let d = 0; d < visible.length; d++) {
    const i = visible[(begin + d) % visible.length];
    if (`${lanes[lane[i]]} ${label[i]}`.toLowerCase().includes(wanted)) { choose(i); return; }
  }
  $("said").textContent = `nothing shown contains ${wanted}`;
}

// --- the controls ---------------------------------------------------------------------------------------
function refilter() {
  const middle = trueTime || !visible.length ? null : visible[Math.min(visible.length - 1, Math.max(0, Math.round(unitAt(left + (width - left) / 2))))];
  filter();
  if (middle !== null && middle !== undefined) origin = place[middle] - (width - left) / 2 / scale;
  $("slider").max = String(Math.max(0, visible.length - 1));
  if (chosen >= 0) choose(chosen, true);
  clampOrigin(); draw();
}
function choices(host, entries, chosenSet) {
  for (const [value, text, many, shape] of entries) {
    const l = element("label"), box = element("input", undefined, { type: "checkbox" });
    box.checked = chosenSet.has(value);
    box.addEventListener("change", () => { if (box.checked) chosenSet.add(value); else chosenSet.delete(value); refilter(); });
    l.append(box); if (shape) l.append(shape); l.append(document.createTextNode(text), element("span", many, { class: "many" }));
    host.append(l);
  }
}
function sample(k) {
  const c = element("canvas", undefined, { width: "44", height: "44", "aria-hidden": "true" }); c.style.width = c.style.height = "22px";
  const p = c.getContext("2d"); p.scale(2, 2); glyph(p, look(k)[0], 11, 11, tint(look(k)[1]), 1);
  return c;
}
function paintLegend() {
  readColours();
  const host = $("legend"); host.replaceChildren();
  for (const k of kindsHere) { const s = element("span"); s.append(sample(k), document.createTextNode(look(k)[2])); host.append(s); }
  const here = new Set(spans.map((s) => s[3].split(" ")[0]));
  const words = { down: "cross-hatched: down", paused: "striped: stopped", cut: "dashed above: a cut path", session: "thin bar: session", lock: "thick bar: lock held" };
  for (const [k, w] of Object.entries(words)) if (here.has(k)) host.append(element("span", w));
}
function paintTitle() {
  const run = record.run, failure = record.failure;
  const planted = run.mutant ? `, with the mistake ${run.mutant}` : "";
  $("title").textContent = `zabd: a simulated ${run.level === "scenario" ? "experiment" : `run of level ${run.level}`}, seed ${run.seed}${planted}`;
  const verdict = $("verdict");
  if (failure) {
    verdict.className = "broken";
    verdict.append(element("b", `✖ ${failure.id} ${failure.name}`), document.createTextNode(`${failure.id ? " is broken" : ""} (${failure.rule}): ${failure.detail}.`));
  } else {
    const faults = Object.values(run.faults).reduce((a, b) => a + b, 0);
    verdict.append(element("b", "✓ Every check held"), document.createTextNode(` over ${run.events.toLocaleString("en")} events${faults ? ` and ${faults} faults` : ""} in ${(run.virtual_ms / 1000).toFixed(1)} s of virtual time.`));
  }
}
function listen() {
  const press = (id, act) => $(id).addEventListener("click", act);
  press("first", () => visible.length && choose(visible[0])); press("last", () => visible.length && choose(visible[visible.length - 1]));
  press("previous", () => stepBy(-1)); press("next", () => stepBy(1)); press("in", () => zoom(1.5)); press("out", () => zoom(1 / 1.5)); press("fit", fit);
  press("violation", () => choose(violation));
  $("violation").hidden = violation < 0;
  $("slider").addEventListener("input", () => choose(visible[Number($("slider").value)]));
  $("true-time").addEventListener("change", () => {
    trueTime = $("true-time").checked; const unit = chosen >= 0 ? chosen : visible[0] ?? 0;
    scale = trueTime ? (scale * Math.min(visible.length, 60)) / Math.max(1, spread(unit)) : 14; origin = unitOf(unit) - (width - left) * 0.5 / scale; clampOrigin(); draw();
  });
  $("cone").addEventListener("change", draw);
  $("find").addEventListener("keydown", (e) => { if (e.key === "Enter") find($("find").value); });
  dark.addEventListener("change", () => { paintLegend(); draw(); });
  addEventListener("resize", draw);
  new ResizeObserver(draw).observe($("stage"));
  document.addEventListener("click", (e) => { for (const d of document.querySelectorAll("nav details[open]")) if (!d.contains(e.target)) d.open = false; });
  document.addEventListener("keydown", keys);
  pointer();
}
const spread = (i) => { const k = place[i]; return (at[visible[Math.min(visible.length - 1, k + 30)]] ?? 1) - (at[visible[Math.max(0, k - 30)]] ?? 0); };
function keys(e) {
  if (e.target.matches("input[type=search], textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
  const onSlider = e.target === $("slider"), onControl = e.target.matches("button, summary, input[type=checkbox]");
  const acts = {
    ArrowRight: () => stepBy(1, e.shiftKey), ArrowLeft: () => stepBy(-1, e.shiftKey), ArrowUp: () => toLane(-1), ArrowDown: () => toLane(1),
    Home: () => visible.length && choose(visible[0]), End: () => visible.length && choose(visible[visible.length - 1]),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit, "/": () => $("find").focus(),
    v: () => violation >= 0 && choose(violation), w: () => chosen >= 0 && cause[chosen] >= 0 && choose(cause[chosen]),
    Escape: () => { for (const d of document.querySelectorAll("details[open]")) d.open = false; choose(-1); },
  };
  if (!acts[e.key] || (onControl && e.key === " ") || (onSlider && e.key.startsWith("Arrow") && !e.shiftKey && /Up|Down/.test(e.key))) return;
  e.preventDefault(); acts[e.key]();
}
function pointer() {
  let down = null, moved = false;
  canvas.addEventListener("pointerdown", (e) => { down = { px: e.clientX, py: e.clientY, origin, scroll }; moved = false; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
    if (down) {
      if (Math.abs(e.clientX - down.px) + Math.abs(e.clientY - down.py) > 4) moved = true;
      if (moved) {
        origin = down.origin - (e.clientX - down.px) / scale; clampOrigin();
        scroll = Math.min(Math.max(0, down.scroll - (e.clientY - down.py)), Math.max(0, rows.length * step() + TOP + 16 - height)); hideTip(); draw();
      }
      return;
    }
    const i = nearest(px, py);
    if (i !== hovered) { hovered = i; draw(); }
    if (i < 0) hideTip(); else showTip(i, px, py);
  });
  canvas.addEventListener("pointerup", (e) => {
    const box = canvas.getBoundingClientRect();
    if (down && !moved) { const i = nearest(e.clientX - box.left, e.clientY - box.top); if (i >= 0) choose(i, true); }
    down = null;
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; hideTip(); draw(); });
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { origin += (e.deltaX || e.deltaY) / scale; clampOrigin(); draw(); }
    else zoom(Math.exp(-e.deltaY * 0.0016), e.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });
}
function showTip(i, px, py) {
  const tip = $("tip"); tip.hidden = false; tip.textContent = `${lanes[lane[i]]}  ${clock(at[i])}  ${label[i]}`;
  tip.style.left = `${Math.max(4, Math.min(px + 14, width - tip.offsetWidth - 8))}px`; tip.style.top = `${py + tip.offsetHeight + 22 > height ? py - tip.offsetHeight - 12 : py + 16}px`;
}
function hideTip() { $("tip").hidden = true; }

const violation = kind.lastIndexOf("violation");
readColours(); filter(); paintTitle(); paintLegend();
choices($("kinds").querySelector(".choices"), kindsHere.map((k) => [k, look(k)[2], kind.filter((o) => o === k).length.toLocaleString("en"), sample(k)]), shownKinds);
choices($("lanes").querySelector(".choices"), lanes.map((name, i) => [i, name, laneKinds[i]]), shownLanes);
$("slider").max = String(Math.max(0, visible.length - 1));
listen(); paint();
{ const interesting = violation >= 0 ? violation : visible.find((i) => kind[i] === "note") ?? visible.find((i) => kind[i] === "commit") ?? visible[0] ?? -1; choose(interesting); if (interesting >= 0) { origin = unitOf(interesting) - ((width - left) * (violation >= 0 ? 0.75 : 0.5)) / scale; clampOrigin(); draw(); } }
window.zabdPicture = { choose, visible: () => visible, chosen: () => chosen, paint, fit, zoom, stateAt, pastOf, record };
})();
