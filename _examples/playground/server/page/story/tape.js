// A Tape is a scene with a beginning and an end: requests on a line of time, and
// what the library decides of each. The reader plays it, scrubs it, puts requests
// on it and changes its limits; then the library decides the whole tape again.
//
// The comment at constructor lists what a scene defines.

import { beat, frame, inView, slow } from "../beat.js";
import { copy } from "../dom.js";
import { copyPicture, settings } from "../png.js";
import { link, linked } from "./link.js";
import { Picture } from "./picture.js";
import { still, touch } from "./player.js";
import * as prose from "./prose.js";
import { tasks } from "./tasks.js";
import { clock, patch, plural, span, svg } from "./svg.js";
import { look, replay, second } from "./world.js";

const most = 160; // the most requests of a tape
const late = 700; // ms after the end of a tape, in which a press of its button is still meant to pause

// lasts returns a length of time from t on as text. It rounds so that clock(t) and this time add up
// to the clock at the end.
const tenth = (us) => Math.round(us / 1e5) * 1e5;
const lasts = (t, us) => span(us < 1e5 ? us : tenth(t + us) - tenth(t));

export class Tape {
  won; // called when the reader has done the task
  ended = -Infinity;

  // A scene has
  //   id: the id of its section
  //   length, start, within and requests: times in units; a request is a time or {t, user, lasts};
  //     requests may be a function of the tape, which changes says depends on its limits
  //   chosen(tape): what the choice of the reader changes in the limits
  //   own: fields of the requests that the reader adds; fixed: the reader adds none
  //   unit: what they are counted in, in µs; usually a second
  //   limits, with periods in s; if apart is set, each decides by itself
  //   rows
  //   gauge(tape, w, h): a drawing of the mechanism
  //   say(tape): a sentence about the present instant
  //   tells: for each element with data-tell, a function that returns its sentences
  //   why(dot, tape): a sentence that says why a request passed or was refused
  // and a row has
  //   title, height and max: its axis goes from 0 to max
  //   place(dot, tape): the value at which a dot is drawn, or undefined
  //   gap: space above it; dense: dots that passed are not counted where they cover each other;
  //     still: dots do not fall to their place, where a height on the way would be read as a value
  //   limit: the name of the number that is drawn as a line, as in the method number; called: what
  //     the line is called, usually limit
  //   live(tape, row): what is drawn for the present instant
  constructor(scene) {
    this.scene = scene;
    this.task = tasks[scene.id];
    this.unit = scene.unit ?? second;
    this.root = document.getElementById(scene.id);
    this.end = scene.length * this.unit;
    this.build();
    this.reset();
    this.restore();
    this.shown = inView(this.find(".stage"));
    new ResizeObserver(() => { if (this.picture.clientWidth !== this.width) this.draw(); }).observe(this.picture);
  }

  find(selector) { return this.root.querySelector(selector); }
  clock(t) { return this.scene.clock?.(t) ?? clock(t); }

  build() {
    const { scene } = this, stage = this.find(".stage");
    this.drawing = new Picture(this, scene.name);
    this.picture = this.drawing.svg;
    this.gauge = scene.gauge && svg("svg", { class: "gauge", role: "img", "aria-label": scene.gaugeName });
    const bar = document.getElementById("bar").content.cloneNode(true);
    const frame = document.createElement("div");
    this.scrub = bar.querySelector(".scrub");
    frame.className = this.gauge ? "frame both" : "frame";
    frame.append(this.picture, this.scrub);
    if (this.gauge) frame.append(this.gauge);
    if (this.task.settings) bar.querySelector(".begin").remove();
    if (scene.fixed) for (const button of bar.querySelectorAll(".send, .ten")) button.remove();
    stage.replaceChildren(frame, bar);
    this.scrub.max = scene.length;
    this.scrub.setAttribute("aria-label", `Time of the scene: ${scene.name}`);
    this.scrub.oninput = () => {
      const t = this.scrub.value * this.unit;
      this.pause();
      this.go(t);
    };
    const on = (selector, f) => { if (this.find(selector)) this.find(selector).onclick = f; };
    on(".play", () => {
      if (this.playing) this.pause();
      else if (performance.now() - this.ended > late) this.play();
    });
    on(".step", () => { this.pause(); this.go(this.now + this.unit / 2); });
    on(".send", () => this.act(1));
    on(".ten", () => this.act(10));
    on(".reset", () => this.reset());
    on(".share", () => copy(this.find(".share"), link(this)));
    on(".photo", () => copyPicture(frame, "svg", this.find("h2").textContent, [...this.root.querySelectorAll(".words > .rule")].map(settings).join(" "), link(this)));
    on(".begin", () => this.try());
    for (const input of this.root.querySelectorAll("[data-number]")) {
      input.oninput = () => { if (input.value && input.checkValidity()) this.set(input.dataset.number, Number(input.value)); };
      input.onchange = () => this.fill();
    }
    const choice = this.find("[data-choice]");
    if (choice) choice.onchange = () => {
      this.choice = choice.value;
      this.scene.chosen?.(this);
      this.requests = this.plan();
      this.decide();
    };
    for (const button of this.root.querySelectorAll("[data-give]")) {
      button.onclick = () => this.act(1, -Number(button.dataset.give));
    }
    for (const button of this.root.querySelectorAll("[data-copy]")) button.onclick = () => copy(button, this.find(`[data-tell=${button.dataset.copy}]`).textContent);
    this.picture.onclick = (e) => this.click(e);
    this.picture.onpointermove = (e) => { if (e.pointerType === "mouse") this.tell(this.drawing.nearest(e)[0] ?? this.chosen); };
    this.picture.onpointerleave = () => this.tell(this.chosen);
    this.picture.onkeydown = (e) => this.key(e);
  }

  // reset makes the tape what it was at first.
  reset() {
    this.pause();
    this.limits = structuredClone(this.scene.limits).map((l) => ({ ...l, period: l.period * second }));
    this.within = (this.scene.within ?? 0) * second;
    this.choice = this.find("[data-choice]")?.value;
    this.scene.chosen?.(this);
    this.requests = this.plan();
    this.chosen = undefined;
    this.trying = false;
    this.now = this.scene.start * this.unit;
    this.fill();
    this.decide();
  }

  // plan returns the requests of the scene.
  plan() {
    const { requests } = this.scene, list = typeof requests === "function" ? requests(this) : requests;
    return list.map((r) => typeof r === "number" ? { t: r } : r)
      .map((r) => ({ cost: 1, ...r, t: Math.round(r.t * this.unit), ...(r.lasts && { lasts: Math.round(r.lasts * this.unit) }) }));
  }

  // repeat makes the tape have the limit and the requests of another tape.
  repeat({ limits: [{ quota, period }], requests }) {
    this.reset();
    Object.assign(this.limits[0], { quota, period });
    this.requests = requests.map((r) => ({ ...r }));
    this.now = Math.min(this.end, Math.max(0, ...requests.map((r) => r.t)) + this.unit);
    this.fill();
    this.decide();
  }

  // try empties the tape for the task of the scene. The limits stay.
  try() {
    const { limits, within } = this;
    this.reset();
    Object.assign(this, { limits, within, trying: true });
    this.fill();
    this.requests = [];
    this.now = this.task.from?.(this) ?? 0;
    this.decide();
    this.play();
    this.find(".ten").focus();
  }

  // restore makes the tape what the address of the page says, if that is about it.
  restore() {
    const from = linked(this.scene.id, this.unit);
    if (!from) return;
    const { numbers, choice, now, times } = from;
    if (choice) {
      this.find("[data-choice]").value = choice;
      this.reset();
    }
    for (const [name, value] of Object.entries(numbers)) this.assign(name, value);
    if (times) this.requests = times.map((t) => ({ t, cost: 1, mine: true }));
    this.now = now;
    this.fill();
    this.decide();
  }

  // number finds a number of the sentence: "quota" is a field of the first limit, and "1.period"
  // a field of the second.
  number(name) {
    const [field, i] = name.split(".").reverse();
    return [this.limits[i ?? 0], field];
  }

  assign(name, value) {
    const [limit, field] = this.number(name);
    if (field === "within") this.within = value * second;
    else limit[field] = field === "period" ? value * second : value;
    this.scene.changed?.(this, field);
  }

  set(name, value) {
    this.assign(name, value);
    if (this.scene.changes) this.requests = this.plan();
    this.decide();
  }

  // choose sets the number of an input to a value that the input allows.
  choose(input, v) {
    const step = Number(input.step) || 1;
    v = Math.min(Number(input.max), Math.max(Number(input.min), Math.round(v / step) * step));
    if (String(v) === input.value) return;
    input.value = v;
    this.set(input.dataset.number, v);
  }

  value(name) {
    const [limit, field] = this.number(name);
    return field === "within" ? this.within / second : field === "period" ? limit.period / second : limit[field] ?? limit.quota;
  }

  // fill writes the numbers into the sentence.
  fill() {
    for (const input of this.root.querySelectorAll("[data-number]")) input.value = this.value(input.dataset.number);
  }

  // add puts n requests on the tape, each at an instant of its own, and returns the last instant.
  add(t, n = 1, cost = 1) {
    if (this.scene.fixed) return t;
    const grid = this.unit / 10;
    t = Math.round(Math.min(this.end, Math.max(0, t)) / grid) * grid;
    for (let i = 0; i < n && this.requests.length < most; i++) {
      while (this.requests.some((r) => r.t === t)) t += grid / 5;
      this.requests.push({ ...this.scene.own, t, cost, mine: true });
    }
    this.decide();
    this.pick(this.dots.find((d) => d.t === t));
    if (this.requests.length >= most) this.tell(undefined, `This tape is full: it takes ${most} requests.`);
    return t;
  }

  // act sends n requests now, and goes on. At the end of the tape it begins anew.
  act(n, cost) {
    if (this.now >= this.end) this.now = 0;
    this.go(Math.max(this.now, this.add(this.now, n, cost)));
    if (!this.playing) this.play();
  }

  // decide asks the library about the whole tape.
  decide() {
    this.looked = undefined;
    this.dots = replay(this.limits, this.within, this.requests, this.scene.apart);
    if (this.chosen) this.chosen = this.dots.find((d) => d.t === this.chosen.t);
    this.draw();
  }

  // What the pictures of scenes need to know.
  get past() { return this.dots.filter((d) => d.t <= this.now && !d.ends); }
  get passed() { return this.past.filter((d) => d.allowed && d.cost > 0); }
  get last() { return this.dots.findLast((d) => d.t <= this.now); }
  get changed() { return JSON.stringify([this.limits, this.within]) !== JSON.stringify([this.scene.limits.map((l) => ({ ...l, period: l.period * second })), (this.scene.within ?? 0) * second]) || this.dots.some((d) => d.mine); }
  get width() { return this.drawing.width; }
  get areas() { return this.drawing.areas; }
  get fallen() { return this.drawing.fallen; }
  x(t) { return this.drawing.x(t); }

  // look returns the Decisions for a request of cost 0 now.
  look() {
    if (this.looked?.t !== this.now) this.looked = { t: this.now, decisions: look(this.limits, this.last?.states, this.now) };
    return this.looked.decisions;
  }

  // Time.
  play() {
    if (this.now >= this.end) this.now = 0;
    this.playing = true;
    let before;
    const pace = () => still.matches ? 500 : [slow, frame, 110][this.drawing.falling] ?? slow; // nobody follows one of many
    this.stop?.();
    this.stop = beat(pace, (time) => {
      const gone = Math.min(600, time - (before ?? time - pace()));
      before = time;
      this.go(this.now + gone * 1e-3 * this.unit * (this.scene.speed ?? 1), time);
      if (this.now < this.end) return;
      this.ended = performance.now();
      this.pause();
    }, this.shown);
    this.move();
  }

  pause() {
    this.stop?.();
    this.playing = false;
    if (this.dots) this.move();
  }

  go(t, time) {
    this.now = Math.round(Math.min(this.end, Math.max(0, t)));
    this.move(time);
  }

  // draw makes the picture anew.
  draw() {
    if (this.gauge) { // not measured in move, because each measurement makes the browser lay the page out
      this.gaugeSize = [this.gauge.clientWidth || 128, this.gauge.clientHeight || 220];
      this.gauge.setAttribute("viewBox", `0 0 ${this.gaugeSize.join(" ")}`);
    }
    this.drawing.draw();
    this.move();
  }

  // move draws what changes with the time of the scene. While the scene plays, time is the time of
  // the frame: then the marks move in every frame, the rest of the picture changes at most twelve times a
  // second, and the words five times.
  move(time) {
    if (!this.areas) return;
    const due = (last, gap) => time === undefined || time - last >= gap || still.matches || this.now >= this.end;
    this.drawing.move(still.matches);
    if (!due(this.filled, 80)) return;
    this.filled = time ?? 0;
    this.drawing.fill();
    if (!due(this.told, 190)) return;
    this.told = time ?? 0;
    if (this.gauge) patch(this.gauge, ...this.scene.gauge(this, ...this.gaugeSize));
    this.scrub.value = this.now / this.unit;
    this.scrub.setAttribute("aria-valuetext", this.clock(this.now));
    const over = this.now >= this.end;
    this.write(".play", this.playing ? "Pause" : over ? "Play again" : "Play");
    this.write(".send", over ? "Send one at 0 s" : "Send a request now");
    this.write(".ten", over ? "10 at 0 s" : "Send 10");
    this.write(".say", this.scene.say(this));
    for (const p of this.root.querySelectorAll("[data-tell]")) prose.write(p, this.scene.tells[p.dataset.tell](this));
    this.check();
    this.drawing.roam(this.past.includes(this.chosen) ? this.chosen : this.past.at(-1), this.chosen);
    this.tell(this.chosen);
  }

  // check ticks the task of the scene when it is done.
  check() {
    const box = this.find(".task"), { done, text, won, settings } = this.task, yes = Boolean((settings || this.trying) && done(this));
    if (yes && !box.classList.contains("done")) this.won?.(this);
    box.classList.toggle("done", yes);
    this.write(".task output", yes ? won(this).replace(/^[a-z0-9]/, (c) => c.toUpperCase()) : `Task: ${text(this)}`);
    this.write(".begin", this.trying ? "Clear, and try again" : "Clear the picture, and try");
  }

  write(selector, text) {
    const e = this.find(selector);
    if (e && e.textContent !== text) e.textContent = text;
  }

  // Answers. The Tab key reaches one dot, and the arrow keys go from there to the other dots.
  key(e) {
    const i = this.fallen.indexOf(e.target.closest?.(".dot")), past = this.past, at = past.indexOf(this.dots[i]);
    if (at < 0) return;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: past.length - 1, Enter: at, " ": at }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.pick(past[Math.min(past.length - 1, Math.max(0, to))]);
    this.fallen[this.dots.indexOf(this.chosen)].focus();
  }

  pick(dot) {
    this.chosen = dot;
    this.drawing.roam(dot, dot);
    this.tell(dot);
  }

  click(e) {
    const [dot, t] = this.drawing.nearest(e);
    if (dot) this.pick(dot);
    else if (t >= 0 && t <= this.end && this.add(t) > this.now && !this.playing) this.play();
  }

  // tell says what became of a request, and why.
  tell(dot, text) {
    this.write(".why", text ?? (!dot ? `${touch.matches ? "Tap" : "Point at"} a dot for its answer.` + (this.scene.fixed ? "" : ` ${touch.matches ? "Tap" : "Click"} the line of time to put a request there.`) :
      dot.t > this.now ? `${dot.cost < 0 ? "The tokens come" : "Your request comes"} at ${this.clock(dot.t)}.` : this.describe(dot)));
  }

  describe(d) {
    if (this.scene.describe) return this.scene.describe(d, this);
    const when = `Request ${d.n + 1}, at ${this.clock(d.t)}`, { remaining, retryAfter } = d.decisions[0];
    if (d.cost < 0) return `${this.clock(d.t)}: ${plural(-d.cost, "token")} put in. ${remaining} are there now.`;
    const because = this.scene.why?.(d, this) ?? "";
    if (d.wait > 0) return `${when}: it waits ${lasts(d.t, d.wait)} and goes ahead at ${this.clock(d.t + d.wait)}. ${because}`;
    if (d.allowed) return `${when}: passed. ${because || `After it, ${remaining} more ${remaining === 1 ? "fits" : "fit"} at once.`}`;
    const retry = Math.max(retryAfter, ...d.decisions.map((x) => x.retryAfter));
    return `${when}: refused. ${because} ${retry < 0 ? "It never fits." : `The next fits ${lasts(d.t, retry)} later, at ${this.clock(d.t + retry)}.`}`;
  }
}
