// Small things that pictures and sentences are made of.

// svg makes an element of a picture. Text becomes a text node.
export function svg(tag, attributes = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, typeof value === "number" ? +value.toFixed(2) : value);
  e.append(...children);
  return e;
}

export const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
export const box = (x, y, width, height, kind) => svg("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), class: kind });
export const label = (x, y, text, kind = "") => svg("text", { x, y, class: kind }, text);
export const bracket = (x1, x2, y, r, kind) => [line(x1, y, x2, y, kind), line(x1, y - r, x1, y + r, kind), line(x2, y - r, x2, y + r, kind)];
export const path = (points, kind) => svg("path", { d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), class: kind });

// pieces cuts a curve into pieces at multiples of 80 px, so that the browser draws only the last of
// them anew as the curve grows.
export function pieces(points) {
  const cut = [];
  for (const p of points) {
    const last = cut.at(-1);
    if (last) last.push(p);
    if (!last || Math.floor(p[0] / 80) !== Math.floor(last[0][0] / 80)) cut.push([p]);
  }
  return cut.filter((p) => p.length > 1);
}

// mark draws a request: a disc if it passed, a cross if it was refused, a dash if only another
// limit refused it, and a ring if it is not decided yet. Units that were given back are a diamond.
export function mark(kind, r = 4.5) {
  if (kind === "refused") return shape(kind, (x, y) => `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`);
  if (kind === "spared") return shape(kind, (x, y) => `M${x - r + 1} ${y}h${2 * r - 2}`);
  if (kind === "gift") return shape(kind, (x, y) => `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}z`);
  return svg("circle", { r, class: "mark " + kind });
}

function shape(kind, outline) {
  return Object.assign(svg("path", { class: "mark " + kind }), { outline });
}

// at puts a mark, or a group of marks, at a place. It sets coordinates and no transform, because
// the browser would keep a separate picture for each transform.
export function at(x, y, e) {
  if (e.outline) e.setAttribute("d", e.outline(+x.toFixed(1), +y.toFixed(1)));
  else if (e.tagName === "circle") {
    e.setAttribute("cx", x.toFixed(1));
    e.setAttribute("cy", y.toFixed(1));
  } else for (const part of e.children) at(x, y, part);
  return e;
}

// patch replaces the children of parent. It changes elements that are already there instead of
// adding new ones, because the browser draws every new element, even if it looks the same.
export function patch(parent, ...children) {
  children.forEach((e, i) => {
    const was = parent.childNodes[i];
    if (!was) parent.append(e);
    else if (!become(was, e)) was.replaceWith(e);
  });
  while (parent.childNodes.length > children.length) parent.lastChild.remove();
}

// become changes the element was so that it equals e. It returns false if the two have different
// names, or attributes of different names.
function become(was, e) {
  if (was.nodeName !== e.nodeName) return false;
  if (e.nodeType === Node.TEXT_NODE) {
    if (was.data !== e.data) was.data = e.data;
    return true;
  }
  const names = e.getAttributeNames();
  if (was.attributes.length !== names.length || !names.every((n) => was.hasAttribute(n))) return false;
  for (const n of names) {
    const value = e.getAttribute(n);
    if (was.getAttribute(n) !== value) was.setAttribute(n, value);
  }
  patch(was, ...e.childNodes);
  return true;
}

// clock returns an instant of a scene as text. span returns a length of time as text, rounded up.
export const clock = (us) => `${(us / 1e6).toFixed(1)} s`;
export const span = (us) => us >= 1e5 ? `${(Math.ceil(us / 1e5) / 10).toFixed(1)} s` : `${Math.ceil(us / 1e3)} ms`;
export const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

// ticks returns the numbers for an axis from 0 to most: about as many as the argument about says.
export function ticks(most, about, step) {
  const least = most / about, power = 10 ** Math.floor(Math.log10(least));
  step ??= Math.max(1, power * ([1, 2, 5].find((m) => m * power >= least) ?? 10));
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
