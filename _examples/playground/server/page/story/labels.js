// Labels that avoid marks and each other. A rectangle is [left, top, right, bottom].

const pen = document.createElement("canvas").getContext("2d");
const family = 'system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif'; // as in story.css
const widths = new Map();

// wide returns the width of a text as story.css draws it in pictures.
export function wide(text) {
  if (!widths.has(text)) {
    pen.font = `600 12px ${family}`;
    widths.set(text, pen.measureText(text).width);
  }
  return widths.get(text);
}

// area returns the rectangle of a text whose baseline is at y. Its end is at x if end is set.
export function area(x, y, text, end) {
  const w = wide(text), left = end ? x - w : x;
  return [left - 2, y - 10, left + w + 2, y + 3];
}

export const around = (x, y, r) => [x - r, y - r, x + r, y + r];
export const meet = ([a, b, c, d], [e, f, g, h]) => a < g && e < c && b < h && f < d;

// free returns the index of the first of the rectangles that meets none of the taken ones and lies
// within another, or -1.
export function free(rectangles, taken, [left, top, right, bottom]) {
  return rectangles.findIndex((r) => r[0] >= left && r[1] >= top && r[2] <= right && r[3] <= bottom && taken.every((t) => !meet(r, t)));
}
