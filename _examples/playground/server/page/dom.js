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

// note shows a short message at the lower edge, which screen readers read, too.
let noted;
export function note(text) {
  clearTimeout(noted);
  $("note").textContent = text;
  noted = setTimeout(() => { $("note").textContent = ""; }, 4000 + 30 * text.length);
}

// settle waits for the clipboard. A browser that asks its user, who does not answer, never settles.
export const settle = (promise) => Promise.race([promise, new Promise((_, fail) => setTimeout(fail, 3000))]);

// copy copies a text, and says so in the words of the button: after Copy link, "Link copied."
export async function copy(button, text) {
  const what = (button.ariaLabel ?? button.textContent).replace(/^Copy (the |this )?/, "");
  try {
    await settle(navigator.clipboard.writeText(text));
    note(`${what[0].toUpperCase()}${what.slice(1)} copied.`);
  } catch {
    note("The browser does not let this page copy. " + (text.startsWith("http") ? "The link is in the address bar." : "Select the text, and copy it yourself."));
  }
}
