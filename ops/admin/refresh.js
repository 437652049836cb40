// Every 5 s, loads the page again and replaces its parts that change: those with data-live. A part
// stays as it is while the operator points at it, has the focus in it, or has selected some of it,
// so that nothing moves under a click. While the page is hidden, nothing is loaded.
"use strict";

const every = 5000;
const notice = document.getElementById("stale");
let last = new Date();
let loading = false;

function inUse(part) {
  const selection = getSelection();
  return (
    part.contains(document.activeElement) ||
    (matchMedia("(hover: hover)").matches && part.matches(":hover") && part.id !== "status") ||
    (!selection.isCollapsed && selection.containsNode(part, true))
  );
}

async function refresh() {
  if (document.hidden || loading) return;
  loading = true;
  let answer = "No answer";
  try {
    const url = new URL(document.body.dataset.refresh ?? "", location.href);
    url.username = url.password = ""; // as in a bookmark with the token, which fetch refuses
    const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(2 * every) });
    if (!response.ok) {
      answer = `Only the status ${response.status}`;
      throw new Error();
    }
    const next = new DOMParser().parseFromString(await response.text(), "text/html");
    if (!next.getElementById("status")) {
      answer = "Only another page"; // such as that of a login
      throw new Error();
    }
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(part.id);
      if (fresh && !inUse(part)) part.replaceChildren(...fresh.childNodes);
    }
    last = new Date();
    notice.hidden = true;
  } catch {
    notice.textContent = `${answer} from this process since ${last.toISOString().slice(11, 19)} UTC. What you see is from then.`;
    notice.hidden = false;
  } finally {
    loading = false;
  }
}

setInterval(refresh, every);
document.addEventListener("visibilitychange", refresh);
