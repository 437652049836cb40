// Functions with which the other modules change the document and speak to screen readers.

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
export const seconds = (us) => us > 0 && us < 1e5 ? Math.ceil(us / 1e3) + " ms" : (Math.ceil(us / 1e5) / 10).toFixed(1) + " s";

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
  say("Copied.");
  const label = button.textContent;
  if (label === "Copied") return;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}
