// Heaps of marks that would cover each other. A heap shows only its first mark, and a number.

import { area, free, wide } from "./labels.js";

const words = { passed: "passed", refused: "refused", spared: "not counted", gift: "gifts" };
const close = 8; // px between two marks that cover each other

// gather returns the heaps among marks, which are {x, y, kind, dense} in the order of x: three or
// more of one kind at the same height, or two crosses. Dense marks are in none. A heap that is wider
// than cell ends at a multiple of 2 × cell, so that it stays the same when its first mark goes.
export function gather(marks, cell = Infinity) {
  const latest = new Map(), heaps = [], page = (m) => Math.floor(m.x / 2 / cell);
  const near = (m, heap) => m.x - heap.at(-1).x < close && (m.x - heap[0].x < cell || page(m) === page(heap[0]));
  for (const m of marks) {
    if (m.dense) continue; // a row of points is what it shows
    const key = `${m.kind} ${Math.round(m.y)}`, heap = latest.get(key);
    if (!heap || !near(m, heap)) latest.set(key, Object.assign([m], { kind: m.kind, least: m.kind === "refused" ? 2 : 3 }));
    else if (heap.push(m) === heap.least) heaps.push(heap);
  }
  return heaps;
}

// name returns where the number n of a heap is written, as [x, y, text], or undefined if there is
// no room: where it meets none of the rectangles in taken, to which it is added, and lies within the
// rectangle within. It has words only if brief is not set.
export function name(heap, n, taken, within, brief) {
  if (n < heap.least) return undefined;
  const { x, y } = heap[0], short = `×${n}`, long = brief ? short : `${n} ${words[heap.kind]}`, places = [[x + 8, y + 4, long], [x + 8, y + 4, short], [x - 4, y - 9, short], [x - 4, y + 18, short], [x - 8 - wide(short), y + 4, short]];
  const rectangles = places.map((p) => area(...p)), best = free(rectangles, taken.filter((r) => !(r[0] === x - 5 && r[1] === y - 5)), within);
  if (best >= 0) taken.push(rectangles[best]);
  return places[best];
}

// colour returns the class of the number of a heap.
export const colour = (heap) => `heap ${{ refused: "bad", spared: "soft" }[heap.kind] ?? "ok"}`;
