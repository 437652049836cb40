// A gauge with a place for each request that a limit allows.

import { at, box, label, mark } from "./svg.js";

// slots draws a box with places, of which some are taken: kinds has the marks in them.
export function slots(w, h, places, kinds, above, below) {
  const top = 26, bottom = h - 26, cols = places > 6 ? 2 : 1, rows = Math.ceil(places / cols);
  const size = Math.min(24, (bottom - top) / rows), left = (w - cols * size) / 2;
  const drawn = [label(w / 2, 16, above, "middle strong"), label(w / 2, h - 8, below, "middle soft"), box(left - 4, bottom - rows * size - 4, cols * size + 8, rows * size + 8, "vessel")];
  for (let i = 0; i < places; i++) {
    const x = left + (i % cols + 0.5) * size, y = bottom - (Math.floor(i / cols) + 0.5) * size;
    drawn.push(at(x, y, mark(kinds[i] ?? "slot", Math.max(2, size * 0.36))));
  }
  return drawn;
}
