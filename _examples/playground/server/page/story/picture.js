// A Picture draws a Tape: a line of requests on top, and below it the rows of the scene.
// draw makes it anew, and move changes what depends on the time of the scene.

import { colour, gather, name } from "./heaps.js";
import { around, area, free, wide } from "./labels.js";
import { at, box, label, line, mark, patch, svg, ticks } from "./svg.js";

const top = 40;   // the distance of the line of requests from the upper edge
const fall = 35e4; // the µs for which a request falls from that line
const right = 14;  // the space to the right of the line

export class Picture {
  constructor(tape, name) {
    this.tape = tape;
    this.svg = svg("svg", { class: "tape", role: "group", "aria-label": `${name}: requests on a line of time` });
    this.left = tape.scene.left ?? 34;
  }

  x(t) { return this.left + (this.width - this.left - right) * t / this.tape.end; }
  timeAt(x) { return (x - this.left) * this.tape.end / (this.width - this.left - right); }

  draw() {
    const { tape } = this;
    this.width = this.svg.clientWidth || 626;
    let y = top + 22;
    this.areas = tape.scene.rows.map((row) => {
      const top = y + (row.title ? 24 : 8) + (row.gap ?? 0);
      const area = { ...row, top, bottom: top + row.height };
      area.y = (v) => area.bottom - row.height * v / area.max;
      y = area.bottom + 12;
      return area;
    });
    this.height = y + 24;
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.head = svg("g", { class: "now" });
    this.lives = svg("g");
    this.marks = svg("g", { role: "list", "aria-label": "Requests that were decided" });
    this.numbers = svg("g", { "aria-hidden": "true" });
    this.fallen = tape.dots.map((d) => this.dot(d));
    this.marks.append(...this.fallen);
    this.taken = []; // rectangles of labels that stay where they are
    const axes = this.axes(), titles = this.titles(), handles = this.handles();
    this.svg.replaceChildren(axes, this.lives, this.arrivals(), this.head, titles, this.marks, this.numbers, ...handles);
    this.heap();
  }

  // write draws a label that stays where it is.
  write(x, y, text, kind) {
    if (text) this.taken.push(area(kind.includes("middle") ? x - wide(text) / 2 : x, y, text, kind.includes("end")));
    return label(x, y, text, kind);
  }

  axes() {
    const { tape } = this, g = svg("g", { "aria-hidden": "true" }), end = this.width - right;
    g.append(this.write(0, 14, tape.scene.top ?? "requests", "soft"), line(this.left, top, end, top, "rule"));
    for (const t of ticks(tape.scene.length, this.width < 480 ? 4 : 8, tape.scene.step)) {
      const x = this.x(t * tape.unit), text = tape.scene.tick?.(t) ?? (t ? String(t) : "0 s"), over = x + wide(text) / 2 > this.width;
      g.append(line(x, this.height - 30, x, this.height - 25, "rule"), this.write(over ? this.width : x, this.height - 12, text, over ? "end soft" : "middle soft"));
    }
    for (const area of this.areas) {
      g.append(line(this.left, area.bottom, end, area.bottom, "rule"));
      for (const v of area.ticks ?? ticks(area.max, 3)) g.append(this.write(this.left - 6, area.y(v) + 4, String(v), "end soft"), line(this.left - 3, area.y(v), this.left, area.y(v), "rule"));
    }
    return g;
  }

  titles() {
    return svg("g", { "aria-hidden": "true" }, ...this.areas.filter((a) => a.title).map((a) => this.write(0, a.top - 12 - (a.gap ?? 0), a.title, "strong title")));
  }

  // arrivals is the line of requests on top.
  arrivals() {
    this.tops = this.tape.dots.map((d) => d.ends ? svg("g") : at(this.x(d.t), top, mark(d.cost < 0 ? "gift" : "waiting")));
    return svg("g", { class: "arrivals", "aria-hidden": "true" }, ...this.tops);
  }

  // dot draws a request where it has fallen to, in every row.
  dot(d) {
    if (d.ends) return svg("g");
    const g = svg("g", { class: "dot", role: "listitem", tabindex: -1, "aria-label": this.tape.describe(d) });
    for (const area of this.areas) {
      const v = area.place(d, this.tape);
      if (v === undefined) continue;
      const x = area.x?.(d, this.tape) ?? this.x(d.t), y = area.y(Math.min(v, area.max));
      const kind = d.cost < 0 ? "gift" : area.kind?.(d) ?? (d.allowed ? "passed" : "refused");
      const e = svg("g", {}, mark(kind));
      if (d.mine) e.append(svg("circle", { r: 8, class: "mine" }));
      g.append(Object.assign(at(x, y, e), { x, y, kind, dense: area.dense && kind === "passed", from: area.still ? y : area === this.areas[0] ? top : area.top }));
    }
    return g;
  }

  // heap finds marks that would cover each other.
  heap() {
    this.counted = undefined;
    this.heaps = gather(this.fallen.flatMap((dot, i) => [...dot.children].map((e) => Object.assign(e, { t: this.tape.dots[i].t }))));
    for (const heap of this.heaps) heap.label = label(0, 0, "", colour(heap));
    this.numbers.replaceChildren(...this.heaps.map((h) => h.label));
  }

  // count writes how many requests each heap has by now. A heap for whose number there is no room
  // shows its marks.
  count() {
    const { now, playing, dots } = this.tape, here = this.x(now);
    const counts = this.heaps.map((heap) => heap.findLastIndex((e) => e.t + (playing ? fall : 0) <= now) + 1);
    const key = `${counts.join()} ${playing || now} ` + dots.findLastIndex((d) => d.t <= now);
    if (this.counted === key) return;
    this.counted = key;
    this.heaps.forEach((heap, i) => heap.forEach((e, j) => e.classList.toggle("under", counts[i] >= heap.least && j > 0 && j < counts[i])));
    const taken = playing ? [...this.taken] : [...this.taken, [here - 1, 20, here + 1, this.height]];
    this.fallen.forEach((dot, i) => {
      if (dots[i].t <= now) for (const e of dot.children) if (!e.classList.contains("under")) taken.push(around(e.x, e.y, 5));
    });
    this.heaps.forEach((heap, i) => {
      const [x, y, text] = name(heap, counts[i], taken, [0, -9, this.width, 1e3]) ?? [0, 0, ""];
      heap.label.textContent = text;
      heap.label.setAttribute("x", x.toFixed(1));
      heap.label.setAttribute("y", y.toFixed(1));
      if (!text) for (const e of heap) e.classList.remove("under");
    });
  }

  // handles are the lines of the limits, which can be dragged.
  handles() {
    const { tape } = this;
    return this.areas.filter((a) => a.limit).map((row) => {
      const input = tape.find(`[data-number="${row.limit}"]`), [limit, field] = tape.number(row.limit), value = limit[field] ?? limit.quota, y = row.y(value), end = this.width - right;
      const g = svg("g", { class: "handle", role: "slider", tabindex: 0, "aria-label": `Limit: ${input.getAttribute("aria-label")}`, "aria-valuemin": input.min, "aria-valuemax": input.max, "aria-valuenow": value });
      const marks = this.fallen.flatMap((dot) => [...dot.children].map((e) => around(e.x, e.y, 5)));
      const called = row.called ?? "limit", places = [[end - 4, y - 5], [end - 4, y + 14], [this.left + wide(called) + 8, y - 5]];
      const [lx, ly] = places[Math.max(0, free(places.map((p) => area(...p, called, true)), [...marks, ...this.taken], [0, -9, this.width, 1e3]))];
      this.taken.push([this.left, y - 2, end, y + 2]);
      g.append(line(this.left, y, end, y, "limit"), box(this.left, y - 12, end - this.left, 24, "grip"),
        svg("path", { d: `M${end} ${y - 5}v10l9 -5z`, class: "knob" }), box(end - 50, y - 14, 64, 28, "pad"), this.write(lx, ly, called, "end accent"));
      const choose = (v) => tape.choose(input, v);
      g.onpointerdown = (e) => {
        e.preventDefault();
        g.focus();
        const move = (e) => choose((row.bottom - (e.clientY - this.svg.getBoundingClientRect().top)) * row.max / row.height);
        const end = new AbortController(), { signal } = end;
        this.svg.setPointerCapture(e.pointerId); // the handle itself is drawn anew as it moves
        this.svg.addEventListener("pointermove", move, { signal });
        this.svg.addEventListener("lostpointercapture", () => end.abort(), { signal });
      };
      g.addEventListener("touchstart", (e) => e.preventDefault(), { passive: false }); // a finger drags the limit, not the page
      g.onclick = (e) => e.stopPropagation();
      g.onkeydown = (e) => {
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[e.key];
        if (!by) return;
        e.preventDefault();
        e.stopPropagation();
        const index = this.areas.filter((a) => a.limit).findIndex((a) => a.limit === row.limit);
        choose(value + by);
        this.svg.querySelectorAll(".handle")[index].focus();
      };
      return g;
    });
  }

  // move draws the marks and the line of the present instant.
  move(still) {
    const { tape } = this, { now, dots } = tape, x = this.x(now), text = `now: ${tape.clock(now)}`, first = wide(tape.scene.top ?? "requests") + 8;
    this.falling = dots.filter((d) => d.t <= now && d.t > now - fall).length;
    dots.forEach((d, i) => {
      const past = d.t <= now, e = this.fallen[i];
      this.drop(e, past && tape.playing && !still ? (now - d.t) / fall : 1);
      const later = d.t + d.wait > now; // it waits
      if (e.later !== later) e.classList.toggle("later", e.later = later);
      if (e.past === past) return;
      e.past = past;
      e.classList.toggle("past", past);
      this.tops[i].classList.toggle("gone", past);
    });
    const left = x > this.width - wide(text) - 5;
    patch(this.head, line(x, 20, x, this.height - 30, "head"), label(left ? Math.max(first + wide(text), x - 5) : Math.max(first, x + 5), 14, text, left ? "end accent" : "accent"));
  }

  // fill draws what else depends on the time.
  fill() {
    this.count();
    patch(this.lives, ...this.areas.flatMap((a) => a.live?.(this.tape, a) ?? []));
  }

  // drop draws a dot that falls to its place, from the line of requests or, in a lower row, from the top
  // of that row, so that it crosses no other. part is how much of the
  // time of the fall has passed.
  drop(dot, part) {
    const way = Math.min(1, part) ** 2;
    if (way === (dot.way ?? 1)) return;
    dot.way = way;
    for (const e of dot.children) at(e.x, e.from + (e.y - e.from) * way, e);
  }

  // roam makes one dot reachable with the Tab key.
  roam(one, chosen) {
    this.fallen.forEach((e, i) => {
      if (this.tape.dots[i].ends) return; // it has no mark
      const tab = this.tape.dots[i] === one ? "0" : "-1";
      if (e.getAttribute("tabindex") !== tab) e.setAttribute("tabindex", tab);
      e.classList.toggle("chosen", this.tape.dots[i] === chosen);
    });
  }

  // nearest returns the dot of the past next to the pointer, and the instant at the pointer.
  nearest(e) {
    const frame = this.svg.getBoundingClientRect(), x = e.clientX - frame.left, y = e.clientY - frame.top;
    let best, distance = e.pointerType === "touch" ? 18 : 11;
    this.fallen.forEach((dot, i) => {
      if (this.tape.dots[i].t > this.tape.now) return;
      for (const mark of dot.children) {
        const away = Math.hypot(mark.x - x, mark.y - y);
        if (away < distance) [best, distance] = [this.tape.dots[i], away];
      }
    });
    return [best, this.timeAt(x)];
  }
}
