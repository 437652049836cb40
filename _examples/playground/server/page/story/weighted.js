// A sliding window from two counts: the count of this window, and a share of the count of the
// window before.

import { counts } from "./counts.js";
import { every } from "./traffic.js";
import { lit, say } from "./prose.js";
import { box, label, line, path, pieces } from "./svg.js";
import { busiest, second } from "./world.js";

const number = (x) => String(+x.toFixed(1));

export const weighted = {
  id: "weighted", name: "a sliding window", gaugeName: "The counts of both windows",
  length: 30, start: 16,
  limits: [{ algorithm: "sliding-window", quota: 10, period: 10 }],
  requests: [...every(11, 8, 9.8), ...every(16, 10.5, 20), ...every(10, 20.5, 28)],
  rows: [{
    title: "requests in a period", height: 190, max: 20, limit: "quota",
    place: (d, tape) => d.allowed ? counts(tape, d.t).estimate : tape.limits[0].quota + 1.2,
    live(tape, area) {
      const { limits: [{ period }], now, end } = tape, edges = Array.from({ length: Math.ceil(end / period) }, (_, i) => i * period), a = tape.x(Math.max(0, now - period)), b = tape.x(now), left = b < 110;
      const times = new Set([now, ...edges, ...tape.passed.flatMap(({ t }) => [t, t - 1, t + period, t + period - 1])]); // between them the curves are straight
      const points = [...times].filter((t) => t >= 0 && t <= now).sort((p, q) => p - q).map((t) => [tape.x(t), counts(tape, t)]);
      const curve = (value, kind) => pieces(points.map(([x, c]) => [x, area.y(Math.min(area.max, value(c)))])).map((p) => path(p, kind));
      return [box(a, area.top, b - a, area.bottom - area.top, "covered"), label(left ? b + 6 : b - 6, area.top + 14, `the last ${period / second} s`, left ? "soft" : "end soft"),
        ...edges.slice(1).map((t) => line(tape.x(t), area.top, tape.x(t), area.bottom, "window")), ...curve((c) => c.real, "real"), ...curve((c) => c.estimate, "estimate")];
    },
  }],
  gauge(tape, w, h) {
    const c = counts(tape, tape.now), { quota } = tape.limits[0], most = Math.max(quota, c.before, c.here), bottom = h - 34, y = (v) => bottom - (bottom - 34) * v / most;
    const column = (x, v, share, name) => [
      box(x, y(v), w / 3, bottom - y(v), "column"), box(x, y(v * share), w / 3, bottom - y(v * share), "column counts"),
      label(x + w / 6, y(v) - 6, String(v), "middle strong"), label(x + w / 6, bottom + 14, name, "middle small"),
    ];
    return [line(4, bottom, w - 4, bottom, "rule"), ...column(w / 9, c.before, c.share, "before"), ...column(w * 5 / 9, c.here, 1, "now"),
      label(w / 3.6, bottom + 29, `× ${Math.round(c.share * 100)} %`, "middle small accent")];
  },
  tells: {
    lesson(tape) {
      const [{ quota, period }] = tape.limits, p = period / second, { n } = busiest(tape.passed, period);
      return say`The ${lit("line", "path.estimate")} is the estimate, and the ${lit("dashes", ".real")} are what really passed. The estimate assumes that the window before was filled evenly. If its requests came late, more than ${quota} can pass: the fullest ${p} s so far hold ${n}, and the worst case is ${2 * quota - 1}.`;
    },
  },
  say(tape) {
    const c = counts(tape, tape.now), { quota } = tape.limits[0];
    const off = Math.abs(c.real - c.estimate) < 1 ? "the estimate is good" : c.real > c.estimate ? "the estimate is too low" : "the estimate is too high";
    return `${c.before} before × ${Math.round(c.share * 100)} % + ${c.here} now = ${number(c.estimate)} of ${quota}. In the last ${tape.limits[0].period / second} s ${c.real} passed: ${off}.`;
  },
  why(d, tape) {
    const c = counts(tape, d.t), n = d.allowed ? c.here - 1 : c.here;
    return `The estimate before it was ${c.before} × ${Math.round(c.share * 100)} % + ${n} = ${number(c.before * c.share + n)}${d.allowed ? "." : `: one more would exceed ${tape.limits[0].quota}.`}`;
  },
};
