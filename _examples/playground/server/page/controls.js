// The controls: the settings of the scene, its clock, and the button that sends requests.

import "./boxes.js";
import { $, copy, length, make, problem, say, write } from "./dom.js";
import { command, scene } from "./scene.js";
import { served } from "./library.js";
import { copyPicture, settings } from "./png.js";
import { rows } from "./rows.js";

const titles = {
  "fixed-window": "Fixed window", "anchored-window": "Anchored window", "sliding-window": "Sliding window", "sliding-log": "Sliding log",
  "token-bucket": "Token bucket", "leaky-bucket": "Leaky bucket", "gcra": "GCRA", "calendar": "Calendar",
};
const boxes = Object.entries(titles).map(([name, title]) => {
  const label = make("label"), box = make("input");
  box.type = "checkbox";
  box.name = "algorithm";
  box.value = name;
  label.append(box, " " + title);
  $("algorithms").append(label);
  return box;
});
/** @type {(name: string) => any[]} */
const named = (name) => [...document.getElementsByName(name)];
const rate = () => Number((10 ** $("rate").value).toPrecision(2));

// fill shows the settings of the scene, except in the field that is being edited.
export function fill() {
  const s = scene.now.settings;
  const set = (e, value) => { if (e !== document.activeElement) e.value = value; };
  set($("quota"), s.quota);
  const unit = [...$("unit").options].map((o) => Number(o.value)).findLast((u) => s.period % u === 0);
  if ($("period") !== document.activeElement) {
    set($("unit"), unit);
    set($("period"), s.period / $("unit").value);
  }
  set($("burst"), s.burst || "");
  set($("wait"), s.wait);
  set($("rate"), Math.log10(s.rate));
  showRate();
  if ([...$("speed").options].every((o) => Number(o.value) !== s.speed)) $("speed").add(new Option(`${s.speed.toLocaleString("en")} ×`, s.speed));
  set($("speed"), String(s.speed));
  for (const e of named("pattern")) e.checked = e.value === s.pattern;
  for (const e of named("store")) e.checked = (e.value === "redis") === s.redis;
  for (const e of boxes) e.checked = s.algorithms.includes(e.value);
  $("hybrid").checked = s.hybrid;
  $("hybrid").disabled = !s.redis;
  for (const e of named("store")) e.disabled = e.value === "redis" && !served;
  $("speed").disabled = $("step").disabled = s.redis;
  write($("pause"), s.paused ? "Run" : "Pause");
  $("pause").setAttribute("aria-pressed", s.paused);
  write($("stepSize"), length(s.period / 10));
}

// count writes the note about the store: how many calls of Redis there were, if there is Redis.
export function count() {
  const { asked, decided } = scene.frame;
  write($("storeNote"), scene.now.settings.redis
    ? `Redis was asked ${asked} times for ${decided} decisions. The scene follows the clock of Redis: Pause stops only the requests.`
    : "The scene has a clock of its own, which you can stop, step and speed up. Hybrid saves calls of Redis.");
}

function showRate() {
  const [each, name] = /** @type {[number, string][]} */ ([[1, "s"], [60, "min"], [3600, "h"], [86400, "d"]]).find(([each]) => rate() * each >= 0.5) ?? [86400, "d"];
  const text = `${+(rate() * each).toPrecision(2)}/${name}`;
  write($("rateValue"), text);
  $("rate").setAttribute("aria-valuetext", text);
}

const longest = 30 * 86400; // s

// pace returns a rate and a speed that suit a limit: requests come half as fast again as it
// allows, and a period that is longer than a minute takes 10 s.
const pace = (quota, period) => ({ rate: Math.min(50, Math.max(1e-5, +(1.5 * quota / period).toPrecision(2))), speed: period > 60 ? period / 10 : 1 });

// send sends the settings that the controls show. The settings in changed replace some of them.
function send(changed = {}) {
  const wrong = [$("quota"), $("period"), $("burst"), $("wait")].find((e) => !e.checkValidity());
  if (wrong) return problem(`${wrong.id[0].toUpperCase() + wrong.id.slice(1)}: a whole number from ${wrong.min} to ${wrong.max}.`);
  const period = $("period").value * $("unit").value;
  if (period > longest) return problem("Period: at most 30 days.");
  problem("");
  const chosen = (name) => named(name).find((e) => e.checked).value;
  command("set", {
    quota: $("quota").value, period, burst: $("burst").value || "0", wait: $("wait").value,
    rate: rate(), speed: $("speed").value, pattern: chosen("pattern"), store: chosen("store"),
    hybrid: $("hybrid").checked ? "yes" : "no", paused: scene.now.settings.paused ? "yes" : "no",
    algorithms: boxes.filter((e) => e.checked).map((e) => e.value).join(","),
    ...changed,
  });
}

$("controls").addEventListener("submit", (e) => e.preventDefault());
$("controls").addEventListener("change", (e) => {
  if (boxes.every((b) => !b.checked)) e.target.checked = true; // at least one stays checked
  send(["quota", "period", "unit"].includes(e.target.id) && $("period").value * $("unit").value > 60 ? pace($("quota").value, $("period").value * $("unit").value) : {});
});
for (const b of document.querySelectorAll("[data-preset]")) b.onclick = () => {
  const [quota, period, burst] = b.dataset.preset.split(" ").map(Number);
  send({ quota, period, burst, ...pace(quota, period) });
};
$("rate").addEventListener("input", showRate);
$("pause").onclick = () => send({ paused: scene.now.settings.paused ? "no" : "yes" });
$("step").onclick = () => command("step");
$("restart").onclick = () => command("restart");
$("all").onclick = () => send({ algorithms: "" });
$("two").onclick = () => send({ algorithms: "fixed-window,sliding-log" });
$("link").onclick = () => copy($("link"), location.href);
$("photo").onclick = () => copyPicture($("lines"), ".row h3, .line, #axis", document.title, settings(document.querySelector(".sentence")), location.href);

// The button sends a request when it is pressed, and more while it is held.
let holding = false, released = 0;
function press() {
  if (holding) return;
  holding = true;
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
$("hit").addEventListener("keydown", (e) => {
  if (e.key !== " " && e.key !== "Enter") return;
  e.preventDefault();
  press();
});
$("hit").addEventListener("click", () => { // from assistive technology, which sends neither pointer nor key events
  if (holding || performance.now() - released < 500) return;
  command("hit");
});
$("hit").addEventListener("contextmenu", (e) => e.preventDefault());
for (const name of ["keyup", "blur"]) $("hit").addEventListener(name, release);
for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, release);
document.addEventListener("visibilitychange", release);

// sayHit announces the decision on the visitor's latest request to a screen reader.
export function sayHit() {
  const refused = [...rows.values()].filter((r) => r.line.record.dots.findLast((d) => d.mine)?.ok === false).map((r) => r.line.record.head.title);
  say(refused.length === 0 ? "Passed by all." : refused.length === rows.size ? "Refused by all." : `Refused by ${refused.join(", ")}.`);
}
