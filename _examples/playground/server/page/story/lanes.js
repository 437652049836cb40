// Bars of requests that passed, each in the lowest lane that is free.

import { box } from "./svg.js";

// lanes returns the lane of each request that passed. ends returns when the bar of a request ends.
export function lanes({ dots }, ends) {
  const until = [], of = new Map();
  for (const d of dots) {
    if (!d.allowed || d.ends) continue;
    let lane = until.findIndex((t) => t <= d.t);
    if (lane < 0) lane = until.length;
    until[lane] = ends(d);
    of.set(d, lane);
  }
  return of;
}

// bars draws them: as much of a bar is filled as is over.
export function bars(tape, area, ends, most) {
  const of = lanes(tape, ends), half = Math.min(most, (area.y(0) - area.y(1)) / 2 - 1);
  return tape.passed.flatMap((d) => {
    const y = area.y(of.get(d) + 0.5) - half, end = Math.min(tape.end, ends(d)), a = tape.x(d.t);
    return [box(a, y, tape.x(end) - a, 2 * half, "stay"), box(a, y, tape.x(Math.min(tape.now, end)) - a, 2 * half, "stayed")];
  });
}
