import { beat, slow } from "./beat.js";
import { choose, showAnswer } from "./client.js";
import { count, fill, sayHit } from "./controls.js";
import { $, write } from "./dom.js";
import { Axis } from "./line.js";
import { lay, rivals, rows, take, tell } from "./rows.js";
import { command, connect, listen, scene } from "./scene.js";

let view = 0;    // the instant that is drawn
let version = 0; // changes with the settings
const axis = new Axis($("axis"));

const on = {
  scene(announced) {
    if (announced.fresh) view = announced.start;
    lay(announced);
    fill();
    choose();
    axis.fresh = false;
    version++;
  },
  frame(frame) {
    if (view > frame.now || frame.now - view > 3e6 * Math.max(1, scene.speed)) view = frame.now - 1;
    if (take(frame)) sayHit();
  },
};

const still = matchMedia("(prefers-reduced-motion: reduce)");

// The picture is a little behind the latest frame, so that it shows nothing undecided.
// Between two frames it moves smoothly from one to the other.
const behind = 100e3; // µs of the visitor's time
let drawn = 0, told = 0;
function animate(time) {
  if (!scene.frame) return;
  const { now } = scene.frame, { settings, users, start } = scene.now;
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
  const shown = { users, apart: (d) => rivals?.has(d.n), still: still.matches || settings.paused, last: view === now };
  for (const { line } of rows.values()) line.show(view, version, shown);
  axis.show(view, { users, start, period: settings.period });
  if (time - told > 190) {
    told = time;
    tell();
    hint(scene.frame.next - now);
    count();
    showAnswer();
  }
}

// The picture moves every slow ms. If the visitor prefers reduced motion, it is drawn twice a second.
beat(() => (still.matches ? 500 : slow), animate);

// hint says when the pattern sends its next request, if the visitor waits more than 1.5 s for it, or
// how many requests a mark stands for.
function hint(wait) {
  const most = Math.max(...[...rows.values()].map((r) => r.line.record.dots.at(-1)?.sum ?? 1));
  write($("hint"), wait > 1.5e6 * scene.speed ? `The pattern sends its next request in ${Math.ceil(wait / 1e6)} s.` :
    most > 1 ? `There are more requests than there is room for: a mark stands for about ${most.toLocaleString("en")} of them.` : "");
}

// For tests.
globalThis.playground = {
  get scene() { return scene.now; },
  get frame() { return scene.frame; },
  dots: (algorithm) => rows.get(algorithm)?.line.record.dots ?? [],
  line: (algorithm) => rows.get(algorithm).line,
  kept: () => [...rows.values()].reduce((n, r) => n + r.line.record.dots.length + r.line.record.levels.reduce((m, l) => m + l.length, 0), 0),
  command,
};

$("more").open = innerWidth > 860 && innerHeight > 700;
document.querySelector(".skip").onclick = (e) => { e.preventDefault(); $("rows").focus(); };
addEventListener("hashchange", () => connect(location.hash.slice(1)));
listen(location.hash.slice(1), on).catch((e) => {
  console.error(e);
  dispatchEvent(new CustomEvent("library", { detail: e.message }));
});
