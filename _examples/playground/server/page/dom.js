// Functions with which the other modules change the document and speak to screen readers.

/** @type {(id: string) => any} */
export const $ = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text) e.textContent = text;
  return e;
}

// write changes the text of an element if it differs.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// seconds returns a length of time as text. It rounds up, so that no wait is shown as 0.0 s.
export function seconds(us) {
  if (us > 0 && us < 1e5) return Math.ceil(us / 1e3) + " ms";
  const [name, size] = /** @type {[string, number][]} */ ([["d", 86400e6], ["h", 3600e6], ["min", 60e6]]).find(([, size]) => us >= 2 * size) ?? ["s", 1e6];
  return (Math.ceil(us / size * 10) / 10).toFixed(1) + " " + name;
}

// length returns a length of time in s as text, in the largest unit of which it is a multiple of a
// tenth: 5400 s as 1.5 h.
export function length(s) {
  const [name, size] = /** @type {[string, number][]} */ ([["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]).find(([, size]) => s >= size && Number.isInteger(+(s / size * 10).toFixed(6))) ?? ["s", 1];
  return `${+(s / size).toFixed(2)} ${name}`;
}

export function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

// say announces a text to screen readers, at most every two seconds. It drops all but the
// latest text.
let spoke = 0, saying;
export function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    spoke = performance.now();
    $("live").textContent = text;
  }, Math.max(0, spoke + 2000 - performance.now()));
}

export async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    return problem("The browser does not let this page copy. " + text);
  }
  done(button, "Copied");
}

// done says on a button, for a moment, what it has done.
export function done(button, text) {
  say(text + ".");
  const label = button.textContent;
  if (label === text) return;
  button.textContent = text;
  setTimeout(() => { button.textContent = label; }, 1200);
}
