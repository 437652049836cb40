import { Timeline, drawAxis } from "./timeline.js";
import { Chat } from "./chat.js";

const $ = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

let stream;          // of server-sent events
let scene;           // as it was announced last
let frame;           // the latest
let arrived = 0;     // when it did, in ms
let serial = 0;      // of the next request
let view = 0;        // the instant that is drawn
let dirty = true;    // there is something to draw
let rows = new Map(); // algorithm → {line, and the elements that show it}
let lost = false;    // the server is gone
const chat = new Chat($("chatSum"), $("free"), $("limited"));

/* the stream */

function connect(query) {
  stream?.close();
  stream = new EventSource("scenes?" + query);
  const on = (name, f) => stream.addEventListener(name, (e) => f(JSON.parse(e.data)));
  on("scene", announced);
  on("frame", took);
  on("problem", problem);
  on("refused", (text) => {
    stream.close();
    problem(text);
    if (query) connect("");
  });
  stream.onerror = () => {
    stream.close();
    lost = true;
    problem("The server is gone. Trying again.");
    setTimeout(() => connect(scene ? scene.link : query), 1500);
  };
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

// Commands arrive in the order in which they were given.
let commands = Promise.resolve();
function command(what, params) {
  commands = commands.then(async () => {
    const body = new URLSearchParams(params);
    body.set("do", what);
    const response = await fetch(`scenes/${scene.id}`, { method: "POST", body });
    if (!response.ok) problem(await response.text());
  }).catch(() => {}); // the stream says so too
  return commands;
}

// speed is that of the scene's clock. Redis' has its own.
const speed = () => scene.settings.redis ? 1 : scene.settings.speed;

function announced(a) {
  const link = scene?.link;
  if (!scene || a.id !== scene.id || a.fresh) {
    if (lost) problem("");
    lost = false;
    rows.forEach((r) => r.line.clear());
    view = a.start;
    serial = 0;
    frame = undefined;
  }
  scene = a;
  if (link !== a.link) history.replaceState(null, "", a.link ? "#" + a.link : location.pathname);
  lay();
  fill();
  dirty = true;
}

function took(f) {
  frame = f;
  arrived = performance.now();
  if (view > f.now || f.now - view > 3e6 * Math.max(1, speed())) view = f.now - 1;
  const n = serial;
  scene.rows.forEach((head, i) => {
    rows.get(head.algorithm).line.add(f.rows[i], f.now, n);
    serial = n + (f.rows[i].hits?.length ?? 0);
  });
  if (f.chat) chat.add(f.chat);
  if (mine && serial > n) sayHit();
  dirty = true;
}

/* rows */

// lay builds the rows that the scene has, and keeps those that are there.
function lay() {
  const kept = new Map();
  for (const head of scene.rows) {
    const row = rows.get(head.algorithm) ?? newRow(head);
    row.line.configure(head, scene.settings, scene.users.length);
    row.lanes.replaceChildren(...scene.users.map(newLane));
    kept.set(head.algorithm, row);
  }
  rows = kept;
  const elements = [...rows.values()].map((r) => r.element);
  const shown = [...$("rows").children];
  if (elements.length !== shown.length || elements.some((e, i) => e !== shown[i])) $("rows").replaceChildren(...elements);
  $("rows").className = (rows.size <= 2 ? "two " : "") + (scene.users.length > 1 ? "lanes3" : "");
}

function newRow(head) {
  const element = make("article", "row"), header = make("header"), facts = make("div", "facts");
  const title = make("h3", "", head.title), canvas = make("canvas");
  title.id = "title-" + head.algorithm;
  facts.id = "facts-" + head.algorithm;
  element.dataset.algorithm = head.algorithm;
  element.setAttribute("aria-labelledby", title.id);
  header.append(title, make("p", "", head.about));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Time line of ${head.title}. The latest requests are in a table below.`);
  canvas.setAttribute("aria-describedby", facts.id);
  const lanes = make("div"), peak = make("div", "peak"), count = make("div", "count");
  const passed = make("span", "y"), refused = make("span", "n");
  count.append(passed, refused);
  facts.append(lanes, peak, count);
  element.append(header, canvas, facts);
  return { element, lanes, peak, passed, refused, line: new Timeline(canvas) };
}

function newLane(user) {
  const lane = make("div", "lane");
  lane.append(...(scene.users.length > 1 ? [make("i", "", user)] : []), make("b"), make("span", "", "left"), make("span", "retry"));
  return lane;
}

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text) e.textContent = text;
  return e;
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// tell writes the numbers of the latest frame.
function tell() {
  if (!frame) return;
  const { quota, period } = scene.settings;
  for (const row of rows.values()) {
    const { line } = row;
    line.left.forEach(({ remaining, next }, i) => {
      const lane = row.lanes.children[i];
      if (!lane) return;
      write(lane.querySelector("b"), String(remaining));
      const wait = next - frame.now;
      write(lane.querySelector(".retry"), remaining === 0 && wait > 0 ? `${row.lanes.children.length > 1 ? "next" : "retry"} in ${seconds(wait)}` : "");
    });
    write(row.peak, line.peak ? `at most ${line.peak} in ${period} s` : "");
    row.peak.classList.toggle("over", line.peak > quota);
    write(row.passed, `${line.passed} passed`);
    write(row.refused, `${line.refused} refused`);
  }
  const s = scene.settings;
  write($("storeNote"), s.redis
    ? `Redis was asked ${frame.asked} times for ${frame.decided} decisions. The clock is its own: pause only stops the requests.`
    : "The scene has a clock of its own: it stops, steps and hurries. Hybrid saves calls to Redis.");
  disagreement();
  table();
  answers();
}

const seconds = (us) => (us / 1e6).toFixed(1) + " s";

// rivals are the requests that two algorithms decide differently.
let rivals;
function disagreement() {
  rivals = undefined;
  $("disagree").hidden = rows.size !== 2;
  if (rows.size !== 2) return;
  const [a, b] = [...rows.values()].map((r) => new Map(r.line.dots.map((d) => [d.n, d.ok])));
  rivals = new Set([...a.keys()].filter((n) => b.has(n) && a.get(n) !== b.get(n)));
  write($("disagree"), `They decide ${rivals.size} of the latest ${a.size} requests differently; a line marks those.`);
}

// table has the latest requests, where it is open.
let tabled = "";
function table() {
  const now = `${serial} ${scene.rows.length} ${scene.id}`;
  if (!$("tableBox").open || tabled === now) return;
  tabled = now;
  const lines = [...rows.values()].map((r) => r.line);
  const head = make("tr");
  for (const text of ["at", "user", ...lines.map((l) => l.head.title)]) {
    const th = make("th", "", text);
    th.scope = "col";
    head.append(th);
  }
  const body = lines[0].dots.slice(-12).reverse().map((d) => {
    const tr = make("tr");
    tr.append(make("td", "", seconds(d.t - scene.start)), make("td", "", d.user < scene.users.length ? scene.users[d.user] : ""));
    for (const line of lines) {
      const e = line.dots.findLast((e) => e.n === d.n);
      tr.append(make("td", "", !e ? "" : e.ok ? `● passed, ${e.remaining} left` : e.retry < 0 ? "✕ refused" : `✕ refused, again in ${seconds(e.retry)}`));
    }
    return tr;
  });
  const thead = make("thead"), tbody = make("tbody");
  thead.append(head);
  tbody.append(...body);
  $("table").replaceChildren(thead, tbody);
}

/* what a client gets */

let asked = 0, asking = "";
async function answers(force) {
  const key = `${serial} ${$("focus").value} ${scene.id}`;
  if (!force && (key === asking || performance.now() - asked < 400)) return;
  asking = key;
  asked = performance.now();
  try {
    const response = await fetch(`scenes/${scene.id}/answers/${$("focus").value}`);
    if (!response.ok) return;
    const all = await response.json();
    const chosen = all.find((a) => a.dialect === $("dialect").value);
    write($("answer"), chosen?.text ?? "No request yet.");
    $("answer").className = !chosen ? "" : chosen.text.includes(" 429 ") ? "refused" : "passed";
  } catch { /* the stream says so too */ }
}

function showCode() {
  const head = scene.rows.find((r) => r.algorithm === $("focus").value);
  write($("go"), head?.go ?? "");
  write($("yaml"), head?.yaml ?? "");
  write($("curl"), `curl -i '${location.origin}/scenes/${scene.id}/${$("focus").value}?headers=${$("dialect").value}'`);
}

/* controls */

const names = ["x-ratelimit", "ietf", "github", "openai", "anthropic", "twitter", "draft-07", "draft-06", "none"];
$("dialect").append(...names.map((n) => new Option(n)));
const titles = {
  "fixed-window": "Fixed window", "anchored-window": "Anchored window", "sliding-window": "Sliding window", "sliding-log": "Sliding log",
  "token-bucket": "Token bucket", "leaky-bucket": "Leaky bucket", "gcra": "GCRA",
};
for (const [name, title] of Object.entries(titles)) {
  const label = make("label"), box = make("input");
  box.type = "checkbox";
  box.name = "algorithm";
  box.value = name;
  label.append(box, " " + title);
  $("algorithms").append(label);
}
const boxes = [...document.getElementsByName("algorithm")];
const rate = () => Number((10 ** $("rate").value).toPrecision(2));

// fill shows the settings of the scene, but for what is being edited.
function fill() {
  const s = scene.settings;
  const set = (e, value) => { if (e !== document.activeElement) e.value = value; };
  set($("quota"), s.quota);
  set($("period"), s.period);
  set($("burst"), s.burst || "");
  set($("rate"), Math.log10(s.rate));
  showRate();
  if ([...$("speed").options].every((o) => Number(o.value) !== s.speed)) $("speed").add(new Option(`${s.speed} ×`, s.speed));
  set($("speed"), String(s.speed));
  for (const e of document.getElementsByName("pattern")) e.checked = e.value === s.pattern;
  for (const e of document.getElementsByName("store")) e.checked = (e.value === "redis") === s.redis;
  for (const e of boxes) e.checked = s.algorithms.includes(e.value);
  $("hybrid").checked = s.hybrid;
  $("hybrid").disabled = !s.redis;
  $("speed").disabled = $("step").disabled = s.redis;
  write($("pause"), s.paused ? "Run" : "Pause");
  $("pause").setAttribute("aria-pressed", s.paused);
  write($("stepSize"), `${s.period / 10} s`);
  const focus = $("focus").value;
  $("focus").replaceChildren(...scene.rows.map((r) => new Option(r.title, r.algorithm, false, r.algorithm === focus)));
  showCode();
}

function showRate() {
  write($("rateValue"), `${rate()}/s`);
  $("rate").setAttribute("aria-valuetext", `${rate()} per second`);
}

// send asks for the settings that the controls show, with some changed.
function send(changed = {}) {
  const wrong = [$("quota"), $("period"), $("burst")].find((e) => !e.checkValidity());
  if (wrong) return problem(`${wrong.id[0].toUpperCase() + wrong.id.slice(1)}: a whole number from ${wrong.min} to ${wrong.max}.`);
  problem("");
  const chosen = (name) => [...document.getElementsByName(name)].find((e) => e.checked).value;
  command("set", {
    quota: $("quota").value, period: $("period").value, burst: $("burst").value || "0",
    rate: rate(), speed: $("speed").value, pattern: chosen("pattern"), store: chosen("store"),
    hybrid: $("hybrid").checked ? "yes" : "no", paused: scene.settings.paused ? "yes" : "no",
    algorithms: boxes.filter((e) => e.checked).map((e) => e.value).join(","),
    ...changed,
  });
}

$("controls").addEventListener("submit", (e) => e.preventDefault());
$("controls").addEventListener("change", (e) => {
  if (e.target.name === "algorithm" && boxes.every((b) => !b.checked)) e.target.checked = true; // one at least
  send();
});
$("rate").addEventListener("input", showRate);
$("pause").onclick = () => send({ paused: scene.settings.paused ? "no" : "yes" });
$("step").onclick = () => command("step");
$("restart").onclick = () => command("restart");
$("all").onclick = () => send({ algorithms: "" });
$("two").onclick = () => send({ algorithms: "fixed-window,sliding-log" });
$("link").onclick = () => copy($("link"), location.href);
for (const b of document.querySelectorAll("[data-copy]")) b.onclick = () => copy(b, $(b.dataset.copy).textContent);
$("focus").onchange = $("dialect").onchange = () => { showCode(); answers(true); };
$("chat").onclick = () => { chat.begin(); command("chat"); };
$("tableBox").ontoggle = () => { tabled = ""; tell(); };
document.querySelector(".skip").onclick = (e) => { e.preventDefault(); $("rows").focus(); };
addEventListener("hashchange", () => connect(location.hash.slice(1)));

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    const label = button.textContent;
    if (label === "Copied") return;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  } catch {
    problem("The browser does not let this page copy. " + text);
  }
}

// The button sends a request when it is pressed, and more while it is held.
let holding = false, released = 0;
let mine = false; // what becomes of the next request is to be said
function press() {
  if (holding) return;
  holding = mine = true;
  $("hit").classList.add("held");
  command("hold");
}
function release() {
  if (!holding) return;
  holding = false;
  released = performance.now();
  $("hit").classList.remove("held");
  command("release");
}
$("hit").addEventListener("pointerdown", (e) => { if (e.button === 0) press(); });
for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, release);
$("hit").addEventListener("blur", release);
$("hit").addEventListener("contextmenu", (e) => e.preventDefault());
document.addEventListener("visibilitychange", release);
$("hit").addEventListener("keydown", (e) => {
  if (e.key !== " " && e.key !== "Enter") return;
  e.preventDefault();
  press();
});
$("hit").addEventListener("keyup", release);
$("hit").addEventListener("click", () => { // of who has neither pointer nor keys
  if (holding || performance.now() - released < 500) return;
  mine = true;
  command("hit");
});

// sayHit tells a screen reader what became of the visitor's request.
function sayHit() {
  const refused = [...rows.values()].filter((r) => r.line.dots.at(-1)?.ok === false).map((r) => r.line.head.title);
  announce(refused.length === 0 ? "Passed by all." : refused.length === rows.size ? "Refused by all." : `Refused by ${refused.join(", ")}.`);
  if (!holding) mine = false;
}

// announce speaks at most every two seconds, and then the latest.
let spoke = 0, saying;
function announce(text) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    spoke = performance.now();
    $("live").textContent = text;
  }, Math.max(0, spoke + 2000 - performance.now()));
}

/* drawing */

let ink; // colours, as #rrggbb
function mix() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue("--" + name).trim();
  ink = Object.fromEntries(["paper", "ink", "soft", "rule", "accent", "ok", "bad"].map((n) => [n, color(n)]));
  ink.font = getComputedStyle(document.body).fontFamily;
  dirty = true;
}
dark.addEventListener("change", mix);
new ResizeObserver(() => { dirty = true; }).observe($("rows"));

// The picture is a little behind the latest frame, so that all it shows was
// decided: between two frames it moves from one to the other.
const behind = 70e3; // µs of the visitor's time
let drawn = 0, told = 0;
function animate(time) {
  requestAnimationFrame(animate);
  if (!frame || !scene) return;
  const pause = still.matches ? 500 : 0;
  if (time - drawn < pause) return;
  const gone = Math.min(100 + pause, time - drawn) * 1e3;
  drawn = time;
  const before = view;
  if (still.matches) view = frame.now;
  else if (scene.settings.paused) view += (frame.now - view) * Math.min(1, gone / 80e3);
  else {
    const target = frame.now + ((time - arrived) * 1e3 - behind) * speed();
    view += gone * speed();
    view += (target - view) * Math.min(1, gone / 500e3);
  }
  if (frame.now - view < 1e3 || view > frame.now) view = frame.now;
  if (dirty || view !== before) {
    Object.assign(ink, { speed: speed(), still: still.matches, users: scene.users });
    for (const row of rows.values()) row.line.draw(view, ink, rivals);
    drawAxis($("axis"), scene.settings.period, view, ink);
    dirty = false;
  }
  if (time - told > 100) {
    told = time;
    tell();
  }
}

// What a test reads.
globalThis.playground = {
  get scene() { return scene; },
  get frame() { return frame; },
  dots: (algorithm) => rows.get(algorithm)?.line.dots ?? [],
  kept: () => [...rows.values()].reduce((n, r) => n + r.line.dots.length + r.line.levels.reduce((m, l) => m + l.length, 0), 0),
  command,
};

mix();
connect(location.hash.slice(1));
requestAnimationFrame(animate);
