// Sentences whose numbers a scene computes.

import { patch } from "./svg.js";

// say is a template for a sentence. Numbers in what it fills in are marked as computed; elements,
// and sentences of other templates, are taken as they are.
export function say(strings, ...values) {
  return strings.flatMap((text, i) => {
    const value = values[i - 1];
    if (i === 0) return [text];
    if (value instanceof Node || Array.isArray(value)) return [value, text].flat();
    return [...String(value).split(/(\d[\d.,]*\d|\d)/).map((x, j) => j % 2 ? part("b", "fact", x) : x), text];
  });
}

// lit returns words that light marks of the picture while the reader points at them. The
// selector finds the marks.
export function lit(words, selector) {
  const e = part("span", "lit", words);
  e.dataset.light = selector;
  e.tabIndex = 0;
  return e;
}

function part(tag, kind, text) {
  const e = document.createElement(tag);
  e.className = kind;
  e.textContent = text;
  return e;
}

// write puts sentences into a paragraph, and changes only what differs.
export function write(p, parts) {
  const nodes = [];
  for (const x of parts.flat()) { // texts in a row become one node, as the browser parses them
    if (typeof x === "string" && nodes.at(-1)?.nodeType === Node.TEXT_NODE) nodes.at(-1).data += x;
    else if (x !== "") nodes.push(typeof x === "string" ? document.createTextNode(x) : x);
  }
  patch(p, ...nodes);
}

// light lights the marks of pictures that the reader points at with a word. A picture that is off screen
// comes into view when the word is clicked.
export function light(root) {
  const sheet = new CSSStyleSheet(); // a class would go when the marks are drawn anew
  document.adoptedStyleSheets.push(sheet);
  const set = (e, on) => {
    const words = e.target.closest?.(".lit"), scene = words?.closest("section, #gate");
    if (!words) return;
    const marks = `#${scene.id} .stage :is(${words.dataset.light})`;
    sheet.replaceSync(on ? `${marks} { stroke: var(--ink) !important; stroke-width: 3 !important; stroke-opacity: 1 !important; } ${marks}:is(text) { stroke: none !important; font-weight: 700; }` : "");
    if (e.type === "click") scene.querySelector(".frame").scrollIntoView({ block: "nearest" });
  };
  for (const name of ["pointerover", "focusin", "click"]) root.addEventListener(name, (e) => set(e, true));
  for (const name of ["pointerout", "focusout"]) root.addEventListener(name, (e) => set(e, false));
}
