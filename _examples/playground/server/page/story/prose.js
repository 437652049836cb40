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

// light lights the marks of pictures that the reader points at with a word.
export function light(root) {
  const set = (e, on) => {
    const words = e.target.closest?.(".lit");
    if (!words) return;
    for (const mark of root.querySelectorAll(`.stage :is(${words.dataset.light})`)) mark.classList.toggle("lighted", on);
  };
  for (const name of ["pointerover", "focusin"]) root.addEventListener(name, (e) => set(e, true));
  for (const name of ["pointerout", "focusout"]) root.addEventListener(name, (e) => set(e, false));
}
