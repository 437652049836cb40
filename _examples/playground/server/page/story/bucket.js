// A token bucket, and GCRA, which makes the same decisions from one instant.

import { every } from "./edge.js";
import { at, box, clock, label, line, mark, path, span, svg } from "./svg.js";

const cost = (l) => l.period / l.quota; // the time of one token
const size = (l) => l.burst ?? l.quota;
const tokens = (l, d) => size(l) - d.resetAfter / cost(l);

// until returns the instant at which the row of GCRA ends after a request.
const until = (d) => d.t + d.decisions[1].resetAfter;

export const bucket = {
  id: "bucket", name: "a bucket of tokens", gaugeName: "The bucket",
  length: 30, start: 8,
  limits: [{ algorithm: "token-bucket", quota: 1, period: 1, burst: 5 }, { algorithm: "gcra", quota: 1, period: 1, burst: 5 }],
  changed({ limits }) { Object.assign(limits[1], { ...limits[0], algorithm: "gcra" }); },
  requests: [...every(5, 2, 2.5), 2.9, ...every(4, 6, 8), ...every(9, 14, 16.7), ...every(6, 19, 25)],
  rows: [{
    title: "tokens in the bucket", height: 120, max: 12, limit: "burst",
    place: (d, { limits: [l] }) => tokens(l, d.decisions[0]),
    live(tape, area) {
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
      const drawn = points.map(([t, v]) => [tape.x(t), area.y(v)]);
      return [path([...drawn, [tape.x(tape.now), area.bottom], [tape.x(0), area.bottom]], "water"), path(drawn, "estimate")];
    },
  }, {
    title: "GCRA: a rod for each request", height: 64, max: 1, ticks: [],
    place: () => undefined, // rods stand for the requests
    live(tape, area) {
      const l = tape.limits[1], [, d] = tape.look(), y = area.top + 26, end = tape.now + d.resetAfter, far = tape.now + size(l) * cost(l);
      const drawn = [box(tape.x(tape.now), y, tape.x(far) - tape.x(tape.now), 26, "ahead")];
      tape.passed.forEach((p, i) => {
        const to = until(p), from = Math.max(p.t, to - cost(l));
        drawn.push(box(tape.x(from), y, tape.x(to) - tape.x(from), 26, i % 2 ? "rod" : "rod odd"));
      });
      drawn.push(line(tape.x(far), y - 8, tape.x(far), y + 34, "limit"), label(Math.min(tape.x(far) + 4, tape.width - 56), y - 12, "at most", "accent"));
      if (d.resetAfter > 0) drawn.push(line(tape.x(end), y - 4, tape.x(end), y + 30, "tip"));
      return drawn;
    },
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
    const [l] = tape.limits, [a, b] = tape.look(), whole = a.remaining;
    return `The bucket holds ${whole} of ${size(l)} tokens. ${b.resetAfter > 0 ? `The row of GCRA ends at ${clock(tape.now + b.resetAfter)}` : "The row of GCRA has ended"}; it may end at ${clock(tape.now + size(l) * cost(l))} at most.`;
  },
  why: (d, { limits: [l] }) => d.allowed ? `It took a token; ${d.decisions[0].remaining} ${d.decisions[0].remaining === 1 ? "is" : "are"} left.` : `The bucket had ${tokens(l, d.decisions[0]).toFixed(2)} tokens, which is less than 1.`,
};
