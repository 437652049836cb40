// A fixed window: a count per window, which is 0 again when the next window begins.

import { gone, lit, say } from "./prose.js";
import { at, box, bracket, label, mark, span } from "./svg.js";
import { busiest, second } from "./world.js";

// every returns n instants with equal gaps, from one instant up to another but without it.
export const every = (n, from, to) => Array.from({ length: n }, (_, i) => from + (to - from) * i / n);

// attack has the times of requests on both sides of an edge, and of some later requests.
export const attack = [...every(11, 8.8, 9.9), ...every(11, 10.1, 11.2), ...every(8, 16, 24), ...every(4, 26, 28)];

// crossing returns the fullest span of a period, and how much of it lies on both sides of an edge.
export function crossing({ dots, limits: [{ period }] }) {
  const span = busiest(dots, period), edge = Math.floor(span.to / period) * period;
  const after = dots.filter((d) => d.allowed && d.t >= Math.max(edge, span.from) && d.t <= span.to).length;
  return { ...span, edge, after, before: span.n - after };
}

const times = (n) => ({ 1: "as many as", 2: "twice", 3: "three times" })[n] ?? `${+n.toFixed(1)} times`;

export const edge = {
  id: "edge", name: "a fixed window", gaugeName: "The count of the window that is open now",
  length: 30, start: 13,
  limits: [{ algorithm: "fixed-window", quota: 10, period: 10 }],
  requests: attack,
  rows: [{
    title: "count of the window", height: 170, max: 14, gap: 18, limit: "quota",
    place: (d, { limits: [l] }) => d.allowed ? l.quota - d.decisions[0].remaining : l.quota + 1,
    live(tape, area) {
      const { limits: [{ quota, period }], now, end } = tape, drawn = [];
      for (let from = 0; from < end; from += period) {
        const to = Math.min(end, from + period), a = tape.x(from), b = tape.x(to), open = from <= now && now < from + period;
        drawn.push(box(a + 1, area.y(quota), b - a - 2, area.bottom - area.y(quota), open ? "box open" : "box"));
      }
      const n = tape.passed.filter((d) => d.t > now - period).length, y = area.top - 12, a = tape.x(Math.max(0, now - period)), b = tape.x(now);
      const text = `${n} ${tape.width < 480 ? "" : "passed "}in these ${period / second} s`, left = b < (tape.width < 480 ? 160 : 300);
      drawn.push(...bracket(a, b, y, 5, "bracket"),
        label(left ? b + 6 : b - 6, left ? y + 4 : y - 9, text, (left ? "" : "end ") + (n > quota ? "alarm strong" : "strong")));
      return drawn;
    },
  }],
  gauge(tape, w, h) {
    const [{ remaining }] = tape.look(), { quota, period } = tape.limits[0], n = quota - remaining;
    return slots(w, h, quota, n, `${n} of ${quota}`, `0 again in ${span(period - tape.now % period)}`);
  },
  say(tape) {
    const { limits: [{ quota, period }], now } = tape, [{ remaining }] = tape.look();
    const recent = tape.passed.filter((d) => d.t > now - period).length;
    return `This window has counted ${quota - remaining} of ${quota}. In the last ${period / second} s, ${recent} passed` + (recent > quota ? `: more than ${quota}, because an edge lies in these ${period / second} s.` : ".");
  },
  tells: {
    lesson(tape) {
      const { limits: [{ quota, period }] } = tape, p = period / second, { n, before, after, edge } = crossing(tape);
      if (n <= quota) return gone(say`the fullest ${p} s hold ${n} requests that passed, which the limit of ${quota} allows. Put requests on both sides of an edge.`);
      return say`Look at ${lit(`the edge at ${edge / second} s`, ".box.open, .bracket")}: ${before} requests pass before it, and ${after} after it, because the new window counts from 0. So ${p} s hold ${n}, which is ${times(n / quota)} the limit of ${quota}.`;
    },
  },
  task: {
    done: (tape) => busiest(tape.past, tape.limits[0].period).n >= 2 * tape.limits[0].quota,
    text(tape, won) {
      const { quota, period } = tape.limits[0], { n } = busiest(tape.past, period);
      if (won) return `Done: ${n} passed within ${period / second} s. The next scene gets the same requests.`;
      return `Task: get ${2 * quota} requests through within ${period / second} s, although the limit is ${quota}.` + (tape.trying ? ` So far ${n}.` : "");
    },
  },
  why(d, { limits: [{ quota, period }] }) {
    const window = `window, which began at ${Math.floor(d.t / period) * period / second} s`;
    return d.allowed ? `It is number ${quota - d.decisions[0].remaining} of ${quota} in its ${window}.` : `Its ${window}, has already counted ${quota}.`;
  },
};

// slots draws a box with places, of which some are taken.
export function slots(w, h, places, taken, above, below) {
  const top = 26, bottom = h - 26, cols = places > 6 ? 2 : 1, rows = Math.ceil(places / cols);
  const size = Math.min(24, (bottom - top) / rows), left = (w - cols * size) / 2;
  const drawn = [label(w / 2, 16, above, "middle strong"), label(w / 2, h - 8, below, "middle soft"), box(left - 4, bottom - rows * size - 4, cols * size + 8, rows * size + 8, "vessel")];
  for (let i = 0; i < places; i++) {
    const x = left + (i % cols + 0.5) * size, y = bottom - (Math.floor(i / cols) + 0.5) * size;
    drawn.push(at(x, y, mark(i < taken ? "passed" : "slot", Math.max(2, size * 0.36))));
  }
  return drawn;
}
