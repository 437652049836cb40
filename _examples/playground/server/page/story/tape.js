// A Tape is a scene with a beginning and an end: requests on a line of time, and
// what the library decides of each. The reader plays it, scrubs it, puts requests
// on it and changes its limits; then the library decides the whole tape again.
//
// The comment at constructor lists what a scene defines.

import { beat, inView } from "../beat.js";
import { at, box, clock, label, line, mark, patch, plural, span, svg, ticks } from "./svg.js";
import { look, replay, second } from "./world.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const top = 40;     // the distance of the line of requests from the upper edge
const fall = 35e4;  // the µs for which a request falls from that line
const most = 120;   // the most requests of a tape
const kinds = { passed: "passed", refused: "refused", spared: "not counted", gift: "gifts" }; // words in labels

// lasts returns a length of time from t on as text. It rounds so that clock(t) and this time add up
// to the clock at the end.
const tenth = (us) => Math.round(us / 1e5) * 1e5;
const lasts = (t, us) => span(us < 1e5 ? us : tenth(t + us) - tenth(t));

export class Tape {
  // A scene has
  //   id: the id of its section
  //   length, start, within and requests: times in s
  //   limits, with periods in s
  //   rows
  //   gauge(tape, w, h): a drawing of the mechanism
  //   say(tape): a sentence about the present instant
  //   why(dot, tape): a sentence that says why a request passed or was refused
  // and a row has
  //   title, height and max: its axis goes from 0 to max
  //   place(dot, tape): the value at which a dot is drawn, or undefined
  //   limit: the name of the number that is drawn as a line, as in the method number
  //   under(tape, row): what is drawn below the dots, for the whole tape
  //   live(tape, row): what is drawn for the present instant
  constructor(scene) {
    this.scene = scene;
    this.root = document.getElementById(scene.id);
    this.end = scene.length * second;
    this.build();
    this.reset();
    this.shown = inView(this.find(".stage"));
    new ResizeObserver(() => { if (this.picture.clientWidth !== this.width) this.draw(); }).observe(this.picture);
  }

  find(selector) { return this.root.querySelector(selector); }

  build() {
    const { scene } = this, stage = this.find(".stage");
    this.picture = svg("svg", { class: "tape", role: "group", "aria-label": `${scene.name}: requests on a line of time` });
    this.gauge = scene.gauge && svg("svg", { class: "gauge", role: "img", "aria-label": scene.gaugeName });
    const bar = document.getElementById("bar").content.cloneNode(true);
    const frame = document.createElement("div");
    this.scrub = bar.querySelector(".scrub");
    frame.className = this.gauge ? "frame both" : "frame";
    frame.append(this.picture, this.scrub);
    if (this.gauge) frame.append(this.gauge);
    stage.replaceChildren(frame, bar);
    this.scrub.max = scene.length;
    this.scrub.setAttribute("aria-label", `Time of the scene: ${scene.name}`);
    this.scrub.oninput = () => {
      const t = this.scrub.value * second;
      this.pause();
      this.go(t);
    };
    this.find(".play").onclick = () => (this.playing ? this.pause() : this.play());
    this.find(".step").onclick = () => { this.pause(); this.go(this.now >= this.end ? 0 : this.now + second / 2); };
    this.find(".send").onclick = () => this.add(this.now);
    this.find(".reset").onclick = () => this.reset();
    for (const input of this.root.querySelectorAll("[data-number]")) {
      input.oninput = () => { if (input.value && input.checkValidity()) this.set(input.dataset.number, Number(input.value)); };
      input.onchange = () => this.fill();
    }
    for (const button of this.root.querySelectorAll("[data-give]")) {
      button.onclick = () => this.add(this.now, -Number(button.dataset.give));
    }
    this.picture.onclick = (e) => this.click(e);
    this.picture.onpointermove = (e) => { if (e.pointerType === "mouse") this.hover(e); };
    this.picture.onpointerleave = () => this.tell(this.chosen);
    this.picture.onkeydown = (e) => this.key(e);
  }

  // reset makes the tape what it was at first.
  reset() {
    this.pause();
    this.limits = structuredClone(this.scene.limits).map((l) => ({ ...l, period: l.period * second }));
    this.within = (this.scene.within ?? 0) * second;
    this.requests = this.scene.requests.map((t) => ({ t: Math.round(t * second), cost: 1 }));
    this.chosen = undefined;
    this.now = this.scene.start * second;
    this.fill();
    this.decide();
  }

  // number finds a number of the sentence: "quota" is a field of the first limit, and "1.period"
  // a field of the second.
  number(name) {
    const [field, i] = name.split(".").reverse();
    return [this.limits[i ?? 0], field];
  }

  set(name, value) {
    const [limit, field] = this.number(name);
    if (field === "within") this.within = value * second;
    else limit[field] = field === "period" ? value * second : value;
    this.scene.changed?.(this, field);
    this.decide();
  }

  // fill writes the numbers into the sentence.
  fill() {
    for (const input of this.root.querySelectorAll("[data-number]")) {
      const [limit, field] = this.number(input.dataset.number);
      input.value = field === "within" ? this.within / second : field === "period" ? limit.period / second : limit[field] ?? limit.quota;
    }
  }

  add(t, cost = 1) {
    if (this.requests.length >= most) return this.tell(undefined, `This tape is full: it takes ${most} requests.`);
    const request = { t: Math.round(Math.min(this.end, Math.max(0, t)) / 1e5) * 1e5, cost, mine: true };
    while (this.requests.some((r) => r.t === request.t)) request.t += 2e4;
    this.requests.push(request);
    this.decide();
    this.choose(this.dots.find((d) => d.t === request.t));
  }

  // decide asks the library about the whole tape.
  decide() {
    this.looked = undefined;
    this.dots = replay(this.limits, this.within, this.requests);
    if (this.chosen) this.chosen = this.dots.find((d) => d.t === this.chosen.t);
    this.draw();
  }

  // What the pictures of scenes need to know.
  get past() { return this.dots.filter((d) => d.t <= this.now); }
  get passed() { return this.past.filter((d) => d.allowed && d.cost > 0); }
  get falls() { return this.dots.some((d) => d.t < this.now + 1e5 && this.now < d.t + fall); }
  get last() { return this.dots.findLast((d) => d.t <= this.now); }
  // look returns the Decisions for a request of cost 0 now.
  look() {
    if (this.looked?.t !== this.now) this.looked = { t: this.now, decisions: look(this.limits, this.last?.states, this.now) };
    return this.looked.decisions;
  }

  // Time.
  play() {
    if (this.now >= this.end) this.now = 0;
    this.playing = true;
    const every = () => (still.matches ? 500 : this.falls ? 100 : 200);
    let before;
    this.stop?.();
    this.stop = beat(every, (time) => {
      this.go(this.now + Math.min(600, time - (before ?? time - every())) * 1e3);
      before = time;
      if (this.now >= this.end) this.pause();
    }, this.shown);
    this.move();
  }

  pause() {
    this.stop?.();
    this.playing = false;
    if (this.dots) this.move();
  }

  go(t) {
    this.now = Math.round(Math.min(this.end, Math.max(0, t)));
    this.move();
  }

  // Places.
  x(t) { return this.left + (this.width - this.left - 14) * t / this.end; }
  timeAt(x) { return (x - this.left) * this.end / (this.width - this.left - 14); }

  // draw makes the picture anew.
  draw() {
    this.width = this.picture.clientWidth || 600;
    this.left = 34;
    if (this.gauge) { // not measured in move, because each measurement makes the browser lay the page out
      this.gaugeSize = [this.gauge.clientWidth || 128, this.gauge.clientHeight || 220];
      this.gauge.setAttribute("viewBox", `0 0 ${this.gaugeSize.join(" ")}`);
    }
    let y = top + 22;
    this.areas = this.scene.rows.map((row) => {
      const area = { ...row, top: y + (row.title ? 24 : 8), bottom: y + (row.title ? 24 : 8) + row.height };
      area.y = (v) => area.bottom - (area.bottom - area.top) * v / area.max;
      y = area.bottom + 12;
      return area;
    });
    this.height = y + 24;
    this.picture.setAttribute("height", this.height);
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.head = svg("g", { class: "now" });
    this.lives = svg("g");
    this.marks = svg("g", { role: "list", "aria-label": "Requests that were decided" });
    this.numbers = svg("g", { "aria-hidden": "true" });
    this.picture.replaceChildren(this.axes(), this.lives, this.arrivals(), this.head, this.titles(), this.marks, this.numbers, ...this.handles());
    this.drawDots();
    this.move();
  }

  axes() {
    const g = svg("g", { "aria-hidden": "true" });
    const right = this.width - 14;
    g.append(label(0, 14, "requests", "soft"), line(this.left, top, right, top, "rule"));
    for (const t of ticks(this.scene.length, this.width < 480 ? 4 : 8)) {
      const x = this.x(t * second);
      g.append(line(x, this.height - 30, x, this.height - 25, "rule"), label(x, this.height - 12, t ? String(t) : "0 s", "middle soft"));
    }
    for (const area of this.areas) {
      g.append(line(this.left, area.bottom, right, area.bottom, "rule"));
      for (const v of area.ticks ?? ticks(area.max, 3)) g.append(label(this.left - 6, area.y(v) + 4, String(v), "end soft"), line(this.left - 3, area.y(v), this.left, area.y(v), "rule"));
      for (const e of area.under?.(this, area) ?? []) g.append(e);
    }
    return g;
  }

  titles() {
    return svg("g", { "aria-hidden": "true" }, ...this.areas.filter((a) => a.title).map((a) => label(0, a.top - 12, a.title, "strong title")));
  }

  // arrivals is the line of requests on top.
  arrivals() {
    const g = svg("g", { class: "arrivals", "aria-hidden": "true" });
    this.tops = this.dots.map((d) => at(this.x(d.t), top, mark(d.cost < 0 ? "gift" : "waiting")));
    g.append(...this.tops);
    return g;
  }

  // drawDots draws each request where it has fallen to, in every row.
  drawDots() {
    this.fallen = this.dots.map((d) => {
      const g = svg("g", { class: "dot", role: "listitem", tabindex: -1, "aria-label": this.describe(d) });
      for (const area of this.areas) {
        const v = area.place(d, this);
        if (v === undefined) continue;
        const x = area.x?.(d, this) ?? this.x(d.t), y = area.y(Math.min(v, area.max));
        const kind = d.cost < 0 ? "gift" : area.kind?.(d) ?? (d.allowed ? "passed" : "refused");
        const e = svg("g", {}, mark(kind));
        if (d.mine) e.append(svg("circle", { r: 8, class: "mine" }));
        g.append(Object.assign(at(x, y, e), { x, y }));
      }
      return g;
    });
    this.marks.replaceChildren(...this.fallen);
    this.heap();
  }

  // heap finds marks of one kind that would cover each other. If they are three or more, or two
  // crosses, move shows only the first mark, with a label such as “3 passed”, or “×3” if there is
  // no room for the word.
  heap() {
    this.heaps = [];
    const latest = new Map();
    this.fallen.forEach((dot, i) => {
      for (const e of dot.children) {
        const kind = e.firstChild.classList[1], key = `${kind} ${Math.round(e.y)}`, heap = latest.get(key), part = { e, t: this.dots[i].t };
        if (heap && e.x - heap.at(-1).e.x < 8) heap.push(part);
        else latest.set(key, Object.assign([part], { kind, least: kind === "refused" ? 2 : 3 }));
        if (heap && heap.length === heap.least && heap.at(-1) === part) this.heaps.push(heap);
      }
    });
    for (const heap of this.heaps) {
      const { x, y } = heap[0].e;
      heap.label = label(x + 8, y + 4, "", `heap ${{ refused: "bad", spared: "soft" }[heap.kind] ?? "ok"}`);
      heap.next = this.fallen.findIndex((dot, i) => this.dots[i].t > heap.at(-1).t && [...dot.children].some((e) => Math.abs(e.y - y) < 12 && e.x < x + 95));
    }
    this.numbers.replaceChildren(...this.heaps.map((h) => h.label));
  }

  // handles are the lines of the limits, which can be dragged.
  handles() {
    return this.areas.filter((a) => a.limit).map((area) => {
      const input = this.find(`[data-number="${area.limit}"]`);
      const g = svg("g", { class: "handle", role: "slider", tabindex: 0, "aria-label": `Limit: ${input.getAttribute("aria-label")}`, "aria-valuemin": input.min, "aria-valuemax": input.max });
      const [limit, field] = this.number(area.limit), value = limit[field] ?? limit.quota, y = area.y(value);
      g.setAttribute("aria-valuenow", value);
      g.append(line(this.left, y, this.width - 14, y, "limit"), box(this.left, y - 12, this.width - 14 - this.left, 24, "grip"),
        svg("path", { d: `M${this.width - 14} ${y - 5}v10l9 -5z`, class: "knob" }), box(this.width - 64, y - 14, 64, 28, "pad"),
        label(this.width - 18, y - 5, "limit", "end accent"));
      const choose = (v) => {
        v = Math.min(Number(input.max), Math.max(Number(input.min), Math.round(v)));
        if (String(v) === input.value) return;
        input.value = v;
        this.set(area.limit, v);
      };
      g.onpointerdown = (e) => {
        e.preventDefault();
        g.focus();
        const move = (e) => choose((area.bottom - (e.clientY - this.picture.getBoundingClientRect().top)) * area.max / (area.bottom - area.top));
        const end = new AbortController(), { signal } = end;
        this.picture.setPointerCapture(e.pointerId); // the handle itself is drawn anew as it moves
        this.picture.addEventListener("pointermove", move, { signal });
        this.picture.addEventListener("lostpointercapture", () => end.abort(), { signal });
      };
      g.addEventListener("touchstart", (e) => e.preventDefault(), { passive: false }); // a finger drags the limit, not the page
      g.onclick = (e) => e.stopPropagation();
      g.onkeydown = (e) => {
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[e.key];
        if (!by) return;
        e.preventDefault();
        e.stopPropagation();
        const index = this.areas.filter((a) => a.limit).indexOf(area);
        choose(value + by);
        this.picture.querySelectorAll(".handle")[index].focus();
      };
      return g;
    });
  }

  // move draws what changes with the time of the scene.
  move() {
    if (!this.lives) return;
    const x = this.x(this.now), now = `now: ${clock(this.now)}`;
    this.dots.forEach((d, i) => {
      const past = d.t <= this.now;
      this.drop(this.fallen[i], past ? (this.now - d.t) / fall : 1);
      this.fallen[i].classList.toggle("later", d.t + d.wait > this.now); // it waits
      if (past === this.fallen[i].classList.contains("past")) return;
      this.fallen[i].classList.toggle("past", past);
      this.tops[i].classList.toggle("gone", past);
    });
    for (const heap of this.heaps) {
      const n = heap.findLastIndex((p) => p.t + (this.playing ? fall : 0) <= this.now) + 1;
      const narrow = this.dots[heap.next]?.t <= this.now || heap[0].e.x > this.width - 100;
      const text = n < heap.least ? "" : narrow ? `×${n}` : `${n} ${kinds[heap.kind]}`;
      if (heap.label.textContent === text) continue;
      heap.label.textContent = text;
      heap.forEach((p, i) => p.e.classList.toggle("under", n >= heap.least && i > 0 && i < n));
    }
    this.roam();
    patch(this.head, line(x, 20, x, this.height - 30, "head"), x > this.width - 90 ? label(x - 5, 14, now, "end accent") : label(x + 5, 14, now, "accent"));
    patch(this.lives, ...this.areas.flatMap((a) => a.live?.(this, a) ?? []));
    if (this.gauge) patch(this.gauge, ...this.scene.gauge(this, ...this.gaugeSize));
    this.scrub.value = this.now / second;
    this.scrub.setAttribute("aria-valuetext", clock(this.now));
    this.write(".play", this.playing ? "Pause" : this.now >= this.end ? "Play again" : "Play");
    this.write(".say", this.scene.say(this));
    this.tell(this.chosen);
  }

  // drop draws a dot that falls from the line of requests to its place. part is how much of the
  // time of the fall has passed.
  drop(dot, part) {
    const way = this.playing && !still.matches ? Math.min(1, part) ** 2 : 1;
    if (way === (dot.way ?? 1)) return;
    dot.way = way;
    for (const e of dot.children) at(e.x, top + (e.y - top) * way, e);
  }

  write(selector, text) {
    const e = this.find(selector);
    if (e.textContent !== text) e.textContent = text;
  }

  // Answers. The Tab key reaches one dot, and the arrow keys go from there to the other dots.
  roam() {
    const past = this.past, one = past.includes(this.chosen) ? this.chosen : past.at(-1);
    this.fallen.forEach((e, i) => {
      const d = this.dots[i], tab = d === one ? "0" : "-1";
      if (e.getAttribute("tabindex") !== tab) e.setAttribute("tabindex", tab);
      e.classList.toggle("chosen", d === this.chosen);
    });
  }

  key(e) {
    const i = this.fallen.indexOf(e.target.closest?.(".dot")), past = this.past;
    if (i < 0) return;
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: past.length - 1, Enter: i, " ": i }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.choose(past[Math.min(past.length - 1, Math.max(0, to))]);
    this.fallen[this.chosen.n].focus();
  }

  choose(dot) {
    this.chosen = dot;
    this.roam();
    this.tell(dot);
  }

  nearest(e) {
    const frame = this.picture.getBoundingClientRect(), x = e.clientX - frame.left, y = e.clientY - frame.top;
    let best, distance = e.pointerType === "touch" ? 18 : 11;
    for (const d of this.past) {
      for (const area of this.areas) {
        const v = area.place(d, this);
        if (v === undefined) continue;
        const away = Math.hypot((area.x?.(d, this) ?? this.x(d.t)) - x, area.y(Math.min(v, area.max)) - y);
        if (away < distance) [best, distance] = [d, away];
      }
    }
    return [best, this.timeAt(x)];
  }

  click(e) {
    const [dot, t] = this.nearest(e);
    if (dot) this.choose(dot);
    else if (t >= 0 && t <= this.end) this.add(t);
  }

  hover(e) {
    const [dot] = this.nearest(e);
    this.tell(dot ?? this.chosen);
  }

  // tell says what became of a request, and why.
  tell(dot, text) {
    this.write(".why", text ?? (!dot ? "Point at a dot for its answer. Click the line of time to put a request there." :
      dot.t > this.now ? `Your request at ${clock(dot.t)} is not decided yet. Play on, or drag the time.` : this.describe(dot)));
  }

  describe(d) {
    const when = `Request ${d.n + 1}, at ${clock(d.t)}`, { remaining, retryAfter } = d.decisions[0];
    if (d.cost < 0) return `${clock(d.t)}: ${plural(-d.cost, "token")} given back. ${remaining} are there now.`;
    const because = this.scene.why?.(d, this) ?? "";
    if (d.wait > 0) return `${when}: it waits ${lasts(d.t, d.wait)} and goes ahead at ${clock(d.t + d.wait)}. ${because}`;
    if (d.allowed) return `${when}: passed. ${because || `After it, ${remaining} more ${remaining === 1 ? "fits" : "fit"} at once.`}`;
    const retry = Math.max(...d.decisions.map((x) => x.retryAfter));
    return `${when}: refused. ${because} ${retry < 0 ? "It never fits." : `The next fits ${lasts(d.t, retry)} later, at ${clock(d.t + retry)}.`}`;
  }
}
