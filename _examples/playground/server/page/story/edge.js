// A window that counts. It begins by the clock (fixed window) or with a request (anchored window).

import { lit, say } from "./prose.js";
import { slots } from "./slots.js";
import { box, bracket, clock, label, plural, span } from "./svg.js";
import { anchoredAttack, attack } from "./traffic.js";
import { busiest, second } from "./world.js";

const anchored = ({ limits: [l] }) => l.algorithm === "anchored-window";
const begin = (d, period) => d.t + d.decisions[0].resetAfter - period; // of the window that counts a request

const times = (n) => n === 2 ? "twice" : `${+n.toFixed(1)} times`;

// starts returns when windows begin.
function starts(tape) {
  const { end, passed, limits: [{ period }] } = tape;
  return anchored(tape) ? [...new Set(passed.map((d) => begin(d, period)))] : Array.from({ length: Math.ceil(end / period) }, (_, i) => i * period);
}

export const edge = {
  id: "edge", name: "a window that counts", gaugeName: "The count of the window that is open now",
  length: 30, start: 13,
  limits: [{ algorithm: "fixed-window", quota: 10, period: 10 }],
  chosen(tape) { tape.limits[0].algorithm = tape.choice; },
  requests: (tape) => anchored(tape) ? anchoredAttack : attack,
  rows: [{
    title: "count of the window", height: 170, max: 14, gap: 26, limit: "quota",
    place: (d, { limits: [l] }) => d.allowed ? l.quota - d.decisions[0].remaining : l.quota + 1,
    live(tape, area) {
      const { limits: [{ quota, period }], now, end } = tape, { n, to } = busiest(tape.passed, period), b = tape.x(to), short = tape.width < 480, left = b < (short ? 160 : 300), y = area.top - 12;
      return [...starts(tape).map((from) => {
        const open = from <= now && now < from + period, x = tape.x(from);
        return box(x + 1, area.y(quota), tape.x(Math.min(end, from + period)) - x - 2, area.bottom - area.y(quota), open ? "box open" : "box");
      }), ...bracket(tape.x(Math.max(0, to - period)), b, y, 5, "bracket"),
      label(left ? b + 6 : b - 6, left ? y + 4 : y - 9, `${n} ${short ? "" : "passed "}in these ${period / second} s`, (left ? "" : "end ") + (n > quota ? "alarm strong" : "strong"))];
    },
  }],
  gauge(tape, w, h) {
    const [{ remaining, resetAfter }] = tape.look(), { quota, period } = tape.limits[0], n = quota - remaining;
    const again = anchored(tape) ? resetAfter : period - tape.now % period;
    return slots(w, h, quota, Array(n).fill("passed"), `${n} of ${quota}`, again ? `0 again in ${span(again)}` : "no window");
  },
  say(tape) {
    const [{ quota, period }] = tape.limits, [{ remaining }] = tape.look(), n = tape.passed.filter((d) => d.t > tape.now - period).length;
    return `This window has counted ${quota - remaining} of ${quota}. In the last ${period / second} s, ${n} passed` + (n > quota ? `: more than ${quota}, because an edge lies between.` : ".");
  },
  tells: {
    lesson(tape) {
      const [{ quota, period }] = tape.limits, p = period / second, { n, from } = busiest(tape.passed, period);
      if (n <= quota) return say`So far the fullest ${p} s hold ${plural(n, "request")}, no more than the limit. Look at an edge, where the next window counts from 0: send some before and after it.`;
      const edge = begin(tape.passed.find((d) => d.t === from), period) + period, before = tape.passed.filter((d) => d.t >= from && d.t < edge).length;
      return say`Look at ${lit(`the edge at ${+(edge / second).toFixed(1)} s`, ".box.open, .bracket")}: ${before} requests pass before it, and ${n - before} after it, because the new window counts from 0. So ${p} s around the edge hold ${n}, ${times(n / quota)} the limit.`;
    },
  },
  why(d, { limits: [{ quota, period }] }) {
    const window = `window, which began at ${clock(begin(d, period))}`;
    return d.allowed ? `It is number ${quota - d.decisions[0].remaining} of ${quota} in its ${window}.` : `Its ${window}, has already counted ${quota}.`;
  },
};
