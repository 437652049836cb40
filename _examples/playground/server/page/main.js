import { beat } from "./beat.js";
import { Chat } from "./chat.js";
import { choose, showAnswer } from "./client.js";
import { count, fill, sayHit } from "./controls.js";
import { $, problem, write } from "./dom.js";
import { lay, rivals, rows, take, tell } from "./rows.js";
import { command, connect, listen, scene } from "./scene.js";
import { drawAxis } from "./timeline.js";

const chat = new Chat($("chatSum"), $("free"), $("limited"));
$("chat").onclick = () => {
  chat.begin();
  if (scene.now.settings.paused) $("chatSum").textContent = "The scene is paused, and its chat with it.";
  command("chat");
};

let view = 0;     // the instant that is drawn
let version = 0;  // changes with everything else that is drawn
let axis = false; // whether the axis is drawn
let lively = 0;   // until when the picture is drawn more often, in ms
function redraw() { axis = false; version++; }

const on = {
  scene(announced) {
    if (announced.fresh) view = announced.start;
    lay(announced);
    fill();
    choose();
    redraw();
  },
  frame(frame) {
    if (view > frame.now || frame.now - view > 3e6 * Math.max(1, scene.speed)) view = frame.now - 1;
    version++;
    if (frame.chat) chat.add(frame.chat);
    if (!take(frame)) return;
    sayHit();
    const before = pace();
    lively = performance.now() + 1000;
    if (pace() < before) start();
  },
};

const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

let ink; // colours, as #rrggbb
function mix() {
  const style = getComputedStyle(document.documentElement);
  ink = Object.fromEntries(["paper", "soft", "rule", "accent", "ok", "bad"].map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  ink.font = getComputedStyle(document.body).fontFamily;
  redraw();
}
dark.addEventListener("change", mix);
new ResizeObserver(redraw).observe($("rows"));

// The picture is a little behind the latest frame, so that it shows nothing undecided.
// Between two frames it moves smoothly from one to the other.
const behind = 100e3; // µs of the visitor's time
let drawn = 0, told = 0;
function animate(time) {
  if (!scene.frame) return;
  const { now } = scene.frame, { settings, users } = scene.now;
  const gone = Math.min(600, time - drawn) * 1e3;
  drawn = time;
  if (still.matches) view = now;
  else if (settings.paused) view += (now - view) * Math.min(1, gone / 80e3);
  else {
    const target = now + ((time - scene.arrived) * 1e3 - behind) * scene.speed;
    view += gone * scene.speed;
    view += (target - view) * Math.min(1, gone / 500e3);
  }
  if (now - view < 1e3 || view > now) view = now;
  Object.assign(ink, { still: still.matches, users });
  for (const { line } of rows.values()) line.show(view, version, ink, rivals);
  if (!axis) drawAxis($("axis"), settings.period, view, ink);
  axis = true;
  if (time - told > 100) {
    told = time;
    tell();
    hint(scene.frame.next - now);
    count();
    showAnswer();
  }
}

// The picture is drawn five times a second, and more often for a second after a request of the
// visitor. If the visitor prefers reduced motion, it is drawn twice a second.
const pace = () => still.matches ? 480 : performance.now() < lively ? 80 : 200;
let stop;
function start() {
  stop?.();
  stop = beat(pace, animate, () => !document.hidden);
}

// hint says when the pattern sends its next request, if the visitor waits more than 1.5 s for it, or
// how many requests a mark stands for.
function hint(wait) {
  const most = Math.max(...[...rows.values()].map((r) => r.line.dots.at(-1)?.sum ?? 1));
  write($("hint"), wait > 1.5e6 * scene.speed ? `The pattern sends its next request in ${Math.ceil(wait / 1e6)} s.` :
    most > 1 ? `There are more requests than there is room for: a mark stands for about ${most.toLocaleString("en")} of them.` : "");
}

// For tests.
globalThis.playground = {
  get scene() { return scene.now; },
  get frame() { return scene.frame; },
  dots: (algorithm) => rows.get(algorithm)?.line.dots ?? [],
  line: (algorithm) => rows.get(algorithm).line,
  kept: () => [...rows.values()].reduce((n, r) => n + r.line.dots.length + r.line.levels.reduce((m, l) => m + l.length, 0), 0),
  command,
};

$("more").open = innerWidth > 860 && innerHeight > 700;
document.querySelector(".skip").onclick = (e) => { e.preventDefault(); $("rows").focus(); };
addEventListener("hashchange", () => connect(location.hash.slice(1)));
mix();
listen(location.hash.slice(1), on).catch((e) => problem("The time lines cannot be drawn. " + e.message));
start();
