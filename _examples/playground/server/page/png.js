// A picture as a PNG to copy, with its title, its settings and its link. The marks are drawn on a
// canvas one by one, because the page may not load an image that it has made (its CSP).

import { note, settle } from "./dom.js";

const scale = 2, pad = 16, row = 20; // px

// copyPicture copies what root shows in the elements that the selector parts finds, or saves it as a
// file if the browser does not let the page copy.
export async function copyPicture(root, parts, title, settings, link) {
  const png = new Promise((next) => draw(root, parts, title, [settings, link]).toBlob(next, "image/png"));
  try {
    await settle(navigator.clipboard.write([new ClipboardItem({ "image/png": png })]));
    note("Picture copied.");
  } catch {
    const a = document.createElement("a"), url = URL.createObjectURL(await png);
    Object.assign(a, { href: url, download: "rate-limit.png" });
    a.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    note("Picture saved as rate-limit.png, because the browser does not let this page copy it.");
  }
}

// settings returns a sentence with what its controls are set to.
export function settings(sentence) {
  const text = (e) => e.nodeType === Node.TEXT_NODE ? e.data : e.matches("select") ? e.selectedOptions[0].textContent : e.matches("input") ? e.value || e.placeholder : e.matches(".note") ? "" : [...e.childNodes].map(text).join("");
  return text(sentence).replace(/\s+/g, " ").trim();
}

function draw(root, parts, title, notes) {
  const frame = root.getBoundingClientRect(), canvas = document.createElement("canvas"), ctx = canvas.getContext("2d");
  const page = getComputedStyle(document.documentElement), colour = (name) => page.getPropertyValue("--" + name), family = getComputedStyle(document.body).fontFamily;
  ctx.font = `14px ${family}`;
  const lines = notes.flatMap((note) => wrap(ctx, note, frame.width)), top = pad + row + lines.length * row;
  canvas.width = (frame.width + 2 * pad) * scale;
  canvas.height = (frame.height + top + pad) * scale;
  ctx.scale(scale, scale);
  ctx.fillStyle = colour("raised");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = colour("ink");
  ctx.font = `600 16px ${family}`;
  ctx.fillText(title, pad, pad + 14);
  ctx.font = `14px ${family}`;
  ctx.fillStyle = colour("soft");
  lines.forEach((text, i) => ctx.fillText(text, pad, pad + 14 + (i + 1) * row));
  const base = new DOMMatrix([scale, 0, 0, scale, (pad - frame.left) * scale, (top - frame.top) * scale]);
  for (const part of root.querySelectorAll(parts)) {
    const { left, top, width } = part.getBoundingClientRect(), style = getComputedStyle(part);
    ctx.setTransform(base);
    ctx.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    ctx.fillStyle = style.color;
    if (part instanceof SVGElement) for (const e of part.querySelectorAll("circle, rect, line, path, text")) shape(ctx, base, part, e);
    else ctx.fillText(part.textContent, left, top + parseFloat(style.fontSize), width);
  }
  return canvas;
}

// wrap cuts a text into lines that fit into a width.
function wrap(ctx, text, width) {
  const lines = [""];
  for (const word of text.split(/(?<=[ &,])/)) {
    if (ctx.measureText(lines.at(-1) + word).width > width) lines.push("");
    lines.push(lines.pop() + word);
  }
  return lines;
}

// shape draws an element of a picture as the browser draws it.
function shape(ctx, base, picture, e) {
  const style = getComputedStyle(e), number = (name) => Number(e.getAttribute(name) ?? 0), owner = e.ownerSVGElement;
  if (!e.checkVisibility({ visibilityProperty: true })) return;
  ctx.save();
  if (owner !== picture) { // the picture in the picture is cut at its sides
    const { x, y, width, height } = owner;
    ctx.setTransform(base.multiply(picture.getScreenCTM()));
    ctx.beginPath();
    ctx.rect(x.baseVal.value, y.baseVal.value, width.baseVal.value, height.baseVal.value);
    ctx.clip();
  }
  ctx.setTransform(base.multiply(e.getScreenCTM()));
  const outline = new Path2D(e.getAttribute("d") ?? undefined);
  if (e.matches("circle")) outline.arc(number("cx"), number("cy"), number("r"), 0, 2 * Math.PI);
  if (e.matches("rect")) outline.rect(number("x"), number("y"), number("width"), number("height"));
  if (e.matches("line")) {
    outline.moveTo(number("x1"), number("y1"));
    outline.lineTo(number("x2"), number("y2"));
  }
  const text = e.matches("text") && e.textContent, place = /** @type {[string, number, number]} */ ([text, number("x"), number("y")]);
  ctx.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  ctx.textAlign = /** @type {CanvasTextAlign} */ ({ middle: "center", end: "right" }[style.textAnchor] ?? "left");
  const fill = () => {
    if (style.fill === "none") return;
    Object.assign(ctx, { fillStyle: style.fill, globalAlpha: Number(style.fillOpacity) });
    if (text) ctx.fillText(...place);
    else ctx.fill(outline);
  };
  const stroke = () => {
    if (style.stroke === "none") return;
    Object.assign(ctx, { strokeStyle: style.stroke, lineWidth: parseFloat(style.strokeWidth), globalAlpha: Number(style.strokeOpacity), lineJoin: "round" });
    ctx.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(",").map(parseFloat));
    if (text) ctx.strokeText(...place);
    else ctx.stroke(outline);
  };
  for (const f of style.paintOrder.startsWith("stroke") ? [stroke, fill] : [fill, stroke]) f();
  ctx.restore();
}
