// A fixed window: a count per window, which is 0 again when the next window begins.

import { lit, say } from "./prose.js";
import { slots } from "./slots.js";
import { box, bracket, label, span } from "./svg.js";
import { attack } from "./traffic.js";
import { busiest, second } from "./world.js";

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
    return `This window has counted ${quota - remaining} of ${quota}. In the last ${period / second} s, ${recent} passed` + (recent > quota ? `: more than ${quota}, because an edge lies between.` : ".");
  },
  tells: {
    lesson(tape) {
      const { limits: [{ quota, period }] } = tape, p = period / second, { n, before, after, edge } = crossing(tape);
      if (n <= quota) return say`Now the fullest ${p} s hold ${n} requests that passed. Put requests on both sides of an edge.`;
      return say`Look at ${lit(`the edge at ${edge / second} s`, ".box.open, .bracket")}: ${before} requests pass before it, and ${after} after it, because the new window counts from 0. So ${p} s around the edge hold ${n}, ${times(n / quota)} the limit.`;
    },
  },
  why(d, { limits: [{ quota, period }] }) {
    const window = `window, which began at ${Math.floor(d.t / period) * period / second} s`;
    return d.allowed ? `It is number ${quota - d.decisions[0].remaining} of ${quota} in its ${window}.` : `Its ${window}, has already counted ${quota}.`;
  },
};
