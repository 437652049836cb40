// A Timeline is the time line of one algorithm: its decisions, and how much was spent.
// Instants are in µs since 1970.

import { inView } from "./beat.js";
import { length } from "./dom.js";

const maxDots = 1200;   // most dots that a row keeps
const maxSamples = 2400;       // most samples that a lane keeps
const keep = 2.2;              // how many periods are kept

export class Timeline {
  view; version;

  constructor(canvas) {
    this.canvas = canvas;
    this.seen = inView(canvas);
    this.clear();
  }

  clear() {
    this.dots = [];    // {t, user, ok, count, no, sum, remaining, retry, reset, wait, own, n, v}; count of sum requests passed
    this.limits = [];  // the capacity is v from the instant t on: [{t, v}]
    this.levels = [];  // by lane: [{t, v}]
    this.left = [];    // by lane: {remaining, next, reset, idle}, with instants
    this.passed = this.refused = this.peak = 0;
  }

  // configure sets the limit from now on. What is drawn of the past stays as it was.
  configure(head, settings, lanes, now) {
    this.head = head;
    this.period = settings.period * 1e6;
    this.quota = settings.quota;
    this.lanes = lanes;
    if (this.limits.at(-1)?.v !== head.capacity) this.limits.push({ t: now, v: head.capacity });
    while (this.levels.length < lanes) this.levels.push([]);
  }

  get bucket() { return this.head.algorithm === "token-bucket"; }

  // level returns how many units are spent or, for a token bucket, how many are left. The level
  // of a meter has fractions of units.
  level(remaining, reset) {
    const { head } = this, spent = head.meter ? reset * this.quota / this.period : head.capacity - remaining;
    return this.bucket ? head.capacity - spent : spent;
  }

  // add adds a frame. n is the number of its first request.
  add(frame, now, n) {
    for (const [t, user, count, remaining, retry, reset, wait, own, no] of frame.hits ?? []) {
      const v = this.level(remaining, reset);
      this.dots.push({ t, user, ok: count > 0, count, no, sum: count + no, remaining, retry, reset, wait, own: own === 1, n: n++, v, cost: count * this.period / this.quota });
      if (count && user < this.lanes) this.levels[user].push({ t, v: this.bucket ? v + count : v - count }, { t, v });
    }
    frame.left.forEach(([remaining, next, reset], lane) => {
      this.left[lane] = { remaining, next: now + next, reset: now + reset, idle: reset === 0 };
      this.sample(this.levels[lane], now, this.level(remaining, reset));
    });
    Object.assign(this, { passed: frame.passed, refused: frame.refused, peak: frame.peak });
    this.forget(now);
  }

  // sample keeps about one sample for each pixel.
  sample(level, t, v) {
    const last = level.at(-1), before = level.at(-2);
    if (last?.look && before?.look && t - before.t < this.period / 300) level.pop();
    level.push({ t, v, look: true });
  }

  // forget drops dots and samples that have left the picture.
  forget(now) {
    const old = now - keep * this.period;
    drop(this.dots, maxDots, (d) => d.t < old);
    for (const level of this.levels) drop(level, maxSamples, (s) => s.t < old);
    while (this.limits.length > 1 && this.limits[1].t < old) this.limits.shift();
  }

  // show draws the instant view if the visitor can see the canvas and something differs from
  // what is drawn there. The first picture is always drawn.
  show(view, version, ink, rivals) {
    const same = view === this.view && version === this.version && !this.growing;
    if (this.view !== undefined && (same || !this.seen())) return;
    Object.assign(this, { view, version });
    this.draw(view, ink, rivals);
  }

  draw(view, ink, rivals) {
    const { ctx, w, h } = surface(this.canvas);
    this.growing = false;
    const place = places(w, this.period, view);
    const height = h / this.lanes;
    if (rivals) {
      ctx.fillStyle = ink.bad;
      ctx.globalAlpha = 0.3;
      for (const d of this.dots) if (rivals.has(d.n)) ctx.fillRect(place.x(d.t) - 0.5, 0, 1, h);
      ctx.globalAlpha = 1;
    }
    for (let lane = 0; lane < this.lanes; lane++) {
      ctx.save();
      ctx.translate(0, lane * height);
      this.drawLane(ctx, ink, place, w, height, lane, view);
      ctx.restore();
    }
    ctx.fillStyle = ink.accent;
    ctx.fillRect(place.now - 0.75, 0, 1.5, h);
  }

  drawLane(ctx, ink, place, w, h, lane, view) {
    const { head } = this;
    const top = h < 60 ? 11 : 16, bottom = h - (h < 60 ? 9 : 12);
    const most = Math.max(...this.limits.map((l) => l.v));
    const y = (v) => bottom - (bottom - top) * Math.min(1, Math.max(0, v / most));
    this.drawWindow(ctx, ink, place, w, top, bottom, lane, view);
    ctx.fillStyle = ink.rule;
    ctx.fillRect(0, bottom, w, 1);
    ctx.font = `11px ${ink.font}`;
    ctx.fillStyle = ink.soft;
    if (this.lanes > 1) ctx.fillText(ink.users[lane] ?? "", 26, top + 9);
    if (head.algorithm === "gcra") {
      this.drawRuler(ctx, ink, place, lane, view, top, bottom);
      this.drawDots(ctx, ink, place, lane, view, () => top + 8, top - 6);
      return;
    }
    ctx.fillText(head.capacity.toLocaleString("en", { notation: "compact" }), 2, y(head.capacity) + 10);
    ctx.fillText("0", 2, bottom - 2);
    ctx.beginPath();
    this.limits.forEach(({ t, v }, i) => { // each limit holds until the t of the next
      const until = this.limits[i + 1]?.t ?? place.last;
      ctx.lineTo(i ? place.x(t) : 0, y(v));
      ctx.lineTo(place.x(until), y(v));
    });
    ctx.strokeStyle = ink.soft;
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 3]);
    ctx.stroke();
    ctx.setLineDash([]);
    this.drawLevel(ctx, ink, place, lane, view, y);
    this.drawFuture(ctx, ink, place, lane, view, y);
    if (head.algorithm === "leaky-bucket") this.drawQueue(ctx, ink, place, lane, view, y, bottom);
    this.drawDots(ctx, ink, place, lane, view, y, this.bucket ? bottom + 6 : top - 6);
  }

  // drawRuler draws GCRA: each request that passes adds a rod after the last one, or at now if
  // the last one has ended. A rod must not end beyond the limit, which moves ahead of now.
  drawRuler(ctx, ink, place, lane, view, top, bottom) {
    const height = Math.min(26, bottom - top - 8), y = bottom - height, { capacity } = this.head;
    ctx.fillStyle = ink.accent;
    ctx.globalAlpha = 0.12;
    ctx.fillRect(place.now, y, capacity * this.period / this.quota * place.scale, height);
    this.dots.forEach((d) => {
      if (!d.ok || d.user !== lane || d.t > view) return;
      const end = d.t + d.reset, from = Math.max(d.t, end - d.cost);
      ctx.globalAlpha = d.n % 2 ? 0.75 : 0.5;
      ctx.fillRect(place.x(from), y, (end - from) * place.scale, height);
    });
    ctx.globalAlpha = 1;
    ctx.fillStyle = ink.soft;
    const limit = place.x(view + capacity * this.period / this.quota);
    for (let at = y - 6; at < bottom; at += 6) ctx.fillRect(limit, at, 1.5, 3);
  }

  // drawQueue draws a line from each request that waits to the instant at which it goes ahead.
  drawQueue(ctx, ink, place, lane, view, y, bottom) {
    ctx.strokeStyle = ctx.fillStyle = ink.ok;
    ctx.lineWidth = 1;
    for (const d of this.dots) {
      if (!d.ok || d.user !== lane || d.t > view) continue;
      const x = place.x(d.t + d.wait);
      ctx.globalAlpha = 0.35;
      ctx.beginPath();
      ctx.moveTo(place.x(d.t), y(d.v));
      ctx.lineTo(x, bottom);
      ctx.stroke();
      ctx.globalAlpha = 1;
      if (d.t + d.wait <= view) ctx.fillRect(x - 1, bottom - 3, 2, 6);
    }
  }

  // drawWindow tints the window that the limit counts.
  drawWindow(ctx, ink, place, w, top, bottom, lane, view) {
    const { algorithm } = this.head, period = this.period;
    const left = this.left[lane];
    let from, to;
    if (algorithm === "fixed-window" || algorithm === "sliding-window") {
      ctx.fillStyle = ink.soft;
      ctx.globalAlpha = 0.5;
      for (let edge = Math.ceil(place.first / period) * period; edge < place.last; edge += period) {
        ctx.fillRect(place.x(edge) - 0.5, top - 6, 1, bottom - top + 12);
      }
      ctx.globalAlpha = 1;
    }
    switch (algorithm) {
      case "fixed-window":
        from = Math.floor(view / period) * period, to = from + period;
        break;
      case "anchored-window":
        if (!left || left.idle || left.reset <= view) return;
        from = left.reset - period, to = left.reset;
        break;
      case "calendar":
        from = Math.floor(view / 86400e6) * 86400e6, to = from + 86400e6;
        break;
      case "sliding-window": case "sliding-log":
        from = view - period, to = view;
        break;
      default:
        return;
    }
    const a = Math.max(0, place.x(from)), b = Math.min(w, place.x(to));
    ctx.fillStyle = ink.accent;
    ctx.globalAlpha = 0.1;
    ctx.fillRect(a, top - 6, b - a, bottom - top + 6);
    ctx.globalAlpha = 0.7;
    ctx.fillRect(a, bottom + 1, b - a, 2);
    ctx.globalAlpha = 1;
  }

  // drawLevel draws how much was spent up to now. Between two samples the line of a meter is
  // straight, and the line of a window is a step.
  drawLevel(ctx, ink, place, lane, view, y) {
    const level = this.levels[lane];
    if (!level?.length) return;
    const path = new Path2D();
    let last;
    for (const s of level) {
      if (s.t > view) {
        if (last && this.head.meter && s.t > last.t) {
          const v = last.v + (s.v - last.v) * (view - last.t) / (s.t - last.t);
          last = { t: view, v };
          path.lineTo(place.x(view), y(v));
        }
        break;
      }
      const x = place.x(s.t);
      if (!last) path.moveTo(x, y(s.v));
      else {
        if (!this.head.meter) path.lineTo(x, y(last.v));
        path.lineTo(x, y(s.v));
      }
      last = s;
    }
    if (!last) return;
    path.lineTo(place.now, y(last.v));
    ctx.strokeStyle = ink.accent;
    ctx.lineWidth = 1.5;
    ctx.lineJoin = "round";
    ctx.stroke(path);
    path.lineTo(place.now, y(0));
    path.lineTo(place.x(level[0].t), y(0));
    ctx.fillStyle = water(ctx, ink.accent, y(this.head.capacity), y(0));
    ctx.fill(path);
  }

  // drawFuture draws the future if nothing else is spent: how a meter drains, when a window
  // ends, and when the next request fits if none fits now.
  drawFuture(ctx, ink, place, lane, view, y) {
    const left = this.left[lane];
    if (!left || left.idle || left.reset <= view) return;
    const v = this.levels[lane].findLast((s) => s.t <= view)?.v ?? 0;
    ctx.strokeStyle = ink.accent;
    ctx.globalAlpha = 0.6;
    ctx.lineWidth = 1;
    ctx.setLineDash([2, 3]);
    ctx.beginPath();
    ctx.moveTo(place.now, y(v));
    if (this.head.meter) {
      ctx.lineTo(place.x(left.reset), y(this.bucket ? this.head.capacity : 0));
    } else if (this.head.algorithm.endsWith("-log")) {
      let spent = v;
      for (const d of this.dots) {
        const gone = d.t + this.period;
        if (!d.ok || d.user !== lane || gone <= view || d.t > view) continue;
        ctx.lineTo(place.x(gone), y(spent));
        ctx.lineTo(place.x(gone), y(spent -= d.count));
      }
    } else if (this.head.algorithm !== "sliding-window") {
      ctx.lineTo(place.x(left.reset), y(v));
      ctx.lineTo(place.x(left.reset), y(0));
    }
    ctx.stroke();
    ctx.globalAlpha = 1;
    if (left.remaining === 0 && left.next > view && place.x(left.next) < place.w) {
      ctx.strokeStyle = ink.ok;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      ctx.arc(place.x(left.next), y(this.head.capacity), 4.5, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  // drawDots draws an admitted request at the level after it, and a refused request beyond
  // the limit. Requests that would cover each other are one mark with their number.
  drawDots(ctx, ink, place, lane, view, y, beyond) {
    const size = place.scale < 12 / 1e6 ? 2.5 : 3.5, time = performance.now();
    const flat = this.head.algorithm === "gcra", groups = [], latest = new Map();
    for (const d of this.dots) {
      if (d.t > view || d.t < place.first || d.user !== lane) continue;
      d.shown ??= d.own && !ink.still ? time : -Infinity;
      for (const ok of [true, false]) {
        if (!(ok ? d.count : d.no)) continue;
        const at = ok ? y(d.v) : beyond, cell = (ok && !flat ? 10 : 28) / place.scale;
        const key = `${ok} ${Math.round(at / 8)}`, group = latest.get(key), page = (t) => Math.floor(t / 2 / cell);
        if (group && d.t - group.at(-1).t < 8 / place.scale && (d.t - group[0].t < cell || page(d.t) === page(group[0].t))) group.push(d);
        else {
          latest.set(key, Object.assign([d], { ok }));
          groups.push(latest.get(key));
        }
      }
    }
    const passed = new Path2D(), refused = new Path2D();
    const mark = (d, r, ok) => {
      const x = place.x(d.t), at = ok ? y(d.v) : beyond, age = time - d.shown;
      if (age < 250) this.growing = true;
      r *= grown(age);
      if (ok) {
        passed.moveTo(x + r, at);
        passed.arc(x, at, r, 0, 2 * Math.PI);
      } else {
        refused.moveTo(x - r, at - r);
        refused.lineTo(x + r, at + r);
        refused.moveTo(x + r, at - r);
        refused.lineTo(x - r, at + r);
      }
    };
    const labels = [];
    ctx.font = `11px ${ink.font}`;
    this.most = 1;
    for (const group of groups) {
      const { ok } = group, [d] = group, at = ok ? y(d.v) : beyond, text = `×${group.length}`, right = flat || !ok;
      const w = 7 * text.length, x = right ? place.x(d.t) + 6 : place.x(d.t) - w / 2, rect = [x, right ? at - 5 : at - 16, x + w, right ? at + 5 : at - 6];
      if (d.sum > 1 || group.length < (right ? 3 : 4) || labels.some((l) => meet(l, rect)) ||
        !right && groups.some((g) => g.ok && g !== group && Math.abs(g[0].t - d.t) * place.scale < 24)) { // no room for a number
        for (const d of group) mark(d, d.sum > 1 ? 1.5 : group.length < 4 ? size : 2, ok);
        continue;
      }
      labels.push(rect);
      mark(d, size + 0.5, ok);
      ctx.fillStyle = ok ? ink.ok : ink.bad;
      ctx.fillText(text, x, right ? at + 4 : at - 7);
      this.most = Math.max(this.most, group.length);
    }
    ctx.fillStyle = ink.ok;
    ctx.fill(passed);
    if (!this.dots.some((d) => d.sum > 1)) { // a border between dots that touch
      ctx.strokeStyle = ink.paper;
      ctx.lineWidth = 0.75;
      ctx.stroke(passed);
    }
    ctx.strokeStyle = ink.bad;
    ctx.lineWidth = 1.6;
    ctx.stroke(refused);
  }
}

/** @type {(a: any[], b: any[]) => boolean} */
const meet = ([a, b, c, d], [e, f, g, h]) => a < g && e < c && b < h && f < d;

// water returns the colour of the level, which is darker near the limit.
function water(ctx, color, a, b) {
  const gradient = ctx.createLinearGradient(0, Math.min(a, b), 0, Math.max(a, b));
  gradient.addColorStop(0, color + "66");
  gradient.addColorStop(1, color + "1a");
  return gradient;
}

// grown returns the relative size of a dot for a request of the visitor, from its age in ms. The
// size grows quickly from 0 to more than 1, and then shrinks to 1. The age is real time, so the
// dot grows even while the scene is paused.
function grown(age) {
  const t = Math.min(1, age / 250);
  return 1 + 1.4 * (1 - t) ** 2 * Math.min(1, t * 8) - Math.max(0, 1 - t * 8);
}

// drop shortens a list from the front: first to the length most, and then by the elements for
// which over returns true.
function drop(list, most, over) {
  let n = Math.max(0, list.length - most);
  while (n < list.length && over(list[n])) n++;
  if (n > 0) list.splice(0, n);
}

// places returns the mapping from instants to horizontal positions.
function places(w, period, view) {
  const past = w < 520 ? 1.4 : 2, future = w < 520 ? 0.8 : 1;
  const scale = w / ((past + future) * period);
  const now = past * period * scale;
  return {
    w, scale, now,
    x: (t) => now + (t - view) * scale,
    first: view - past * period,
    last: view + future * period,
  };
}

// surface fits a canvas to its size on the screen and clears it.
function surface(canvas) {
  const ratio = devicePixelRatio || 1;
  const w = canvas.clientWidth, h = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, w, h);
  return { ctx, w, h };
}

// drawAxis labels the time lines in seconds from now.
export function drawAxis(canvas, period, view, ink) {
  const { ctx, w } = surface(canvas);
  const place = places(w, period * 1e6, view);
  const size = [86400, 3600, 60, 1].find((u) => period >= 2 * u) ?? 1, unit = size * step(period / size / (w < 520 ? 2.5 : 5));
  ctx.font = `12px ${ink.font}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "center";
  ctx.fillStyle = ink.soft;
  for (let s = Math.ceil((place.first - view) / 1e6 / unit) * unit; s * 1e6 <= place.last - view; s += unit) {
    const x = place.x(view + s * 1e6);
    const text = Math.abs(s) < unit / 2 ? "now" : `${s > 0 ? "+" : "−"}${length(+Math.abs(s).toFixed(1))}`;
    ctx.fillRect(x - 0.5, 0, 1, 4);
    if (x > 20 && x < w - 20) ctx.fillText(text, x, 6);
  }
}

// step rounds a number up to 1, 2 or 5 times a power of ten.
function step(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((m) => m * power >= least) ?? 10);
}
