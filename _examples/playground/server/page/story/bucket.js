// A token bucket: a balance that refills.

import { every } from "./traffic.js";
import { lit, say } from "./prose.js";
import { at, label, mark, path, pieces, plural, span, svg } from "./svg.js";

export const cost = (l) => l.period / l.quota; // the time of one token
export const size = (l) => l.burst ?? l.quota;
export const tokens = (l, d) => size(l) - d.resetAfter / cost(l);
export const traffic = [...every(5, 2, 2.5), 2.9, ...every(4, 6, 8), ...every(9, 14, 16.7), ...every(6, 19, 25)];

// level draws how many tokens there were, up to now.
export function level(tape, area) {
  const [l] = tape.limits, points = [[0, size(l)]];
  const flow = (from, to) => { // from the level of one instant to that of another
    const [t, v] = points.at(-1), full = t + (size(l) - v) * cost(l);
    if (full < to) points.push([full, size(l)]);
    points.push([to, Math.min(size(l), v + (to - t) / cost(l))]);
  };
  for (const d of tape.past) {
    flow(points.at(-1)[0], d.t);
    points.push([d.t, tokens(l, d.decisions[0])]);
  }
  flow(points.at(-1)[0], tape.now);
  return pieces(points.map(([t, v]) => [tape.x(t), area.y(v)])).flatMap((p) => [path([...p, [p.at(-1)[0], area.bottom], [p[0][0], area.bottom]], "water"), path(p, "estimate")]);
}

export const bucket = {
  id: "bucket", name: "a token bucket", gaugeName: "The bucket",
  length: 30, start: 8,
  limits: [{ algorithm: "token-bucket", quota: 1, period: 1, burst: 5 }],
  requests: traffic,
  rows: [{
    title: "tokens in the bucket", height: 170, max: 12, limit: "burst", called: "bucket size",
    place: (d, { limits: [l] }) => tokens(l, d.decisions[0]),
    live: level,
  }],
  gauge(tape, w, h) {
    const [l] = tape.limits, n = tokens(l, tape.look()[0]), whole = Math.floor(n + 1e-9), part = n - whole, full = whole === size(l);
    const top = 44, bottom = h - 26, x = w * 0.18, width = w * 0.64, cols = size(l) > 5 ? 2 : 1, rows = Math.ceil(size(l) / cols), step = Math.min(26, (bottom - top - 6) / rows), r = Math.min(10, step * 0.42);
    const drawn = [svg("path", { d: `M${x - 6} ${top}L${x} ${bottom}H${x + width}L${x + width + 6} ${top}`, class: "vessel" }), svg("path", { d: `M${w / 2 - 12} 4h24v10h-24z`, class: "tap" })];
    if (!full) drawn.push(at(w / 2, 18 + part * (top - 12), mark("token", 2 + part * (r - 2))));
    for (let i = 0; i < whole; i++) drawn.push(at(w / 2 + (i % cols - (cols - 1) / 2) * width / 2.2, bottom - step * (Math.floor(i / cols) + 0.5), mark("token", r)));
    drawn.push(label(w / 2, h - 8, full ? "full" : `next in ${span((1 - part) * cost(l))}`, "middle soft"));
    return drawn;
  },
  say(tape) {
    const [l] = tape.limits, [{ remaining, resetAfter }] = tape.look();
    return `The bucket holds ${remaining} of ${size(l)} tokens. ` + (resetAfter > 0 ? `If no request comes, it is full in ${span(resetAfter)}.` : "It is full.");
  },
  tells: {
    lesson({ limits: [l], past }) {
      const no = past.filter((d) => !d.allowed).length, n = size(l);
      return say`A ${lit("full bucket", ".vessel, .mark.token")} lets a burst of ${plural(n, "request")} through at once. After it, one passes every ${cost(l) / 1e6} s. So far ${plural(no, "request")} found no token.`;
    },
  },
  why: (d, { limits: [l] }) => d.allowed ? `It took a token; ${d.decisions[0].remaining} ${d.decisions[0].remaining === 1 ? "is" : "are"} left.` : `The bucket had ${tokens(l, d.decisions[0]).toFixed(2)} tokens, which is less than 1.`,
};
