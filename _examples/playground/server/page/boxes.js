// Boxes for numbers: a number that is out of range becomes the nearest in range when the reader leaves
// its box, not what the box held after its first digit. The page says what the range is.

import { note } from "./dom.js";

const say = (input, text) => note(`${input.ariaLabel[0].toUpperCase()}${input.ariaLabel.slice(1)}: ${text}.`);
const most = (input) => say(input, `at most ${Number(input.max).toLocaleString("en")}`);

addEventListener("input", (/** @type {any} */ { target: input }) => { if (input.validity?.rangeOverflow) most(input); }, true);

addEventListener("change", (/** @type {any} */ { target: input }) => {
  if (!input.matches?.("input[type=number]") || !input.value || input.checkValidity()) return;
  const { rangeOverflow, rangeUnderflow } = input.validity, step = Number(input.step) || 1;
  if (rangeOverflow) most(input);
  else say(input, rangeUnderflow ? `at least ${input.min}` : step === 1 ? "a whole number" : `a multiple of ${step}`);
  input.value = rangeOverflow ? input.max : rangeUnderflow ? input.min : Math.round(input.value / step) * step;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}, true);
