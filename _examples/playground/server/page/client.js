// The answer that a client gets under one algorithm, and the code and YAML for its limit.

import { $, copy, write } from "./dom.js";
import { inView } from "./beat.js";
import { answers, scene } from "./scene.js";
import { serial } from "./rows.js";

const dialects = ["x-ratelimit", "ietf", "github", "openai", "anthropic", "twitter", "draft-07", "draft-06", "none"];
$("dialect").append(...dialects.map((name) => new Option(name)));

// choose fills the list of algorithms.
export function choose() {
  const focus = $("focus").value;
  $("focus").replaceChildren(...scene.now.rows.map((r) => new Option(r.title, r.algorithm, false, r.algorithm === focus)));
  code();
}

function code() {
  const algorithm = $("focus").value, head = scene.now.rows.find((r) => r.algorithm === algorithm);
  write($("go"), head?.go ?? "");
  write($("yaml"), head?.yaml ?? "");
  $("terminal").hidden = !scene.now.settings.redis;
  write($("curl"), `curl -i '${location.origin}/scenes/${scene.now.id}/${algorithm}?headers=${$("dialect").value}'`);
}

// showAnswer shows the answer to the latest request. It fetches an answer at most once a second,
// unless now is true.
let asked = 0, about = "";
const seen = inView($("answer"));
export async function showAnswer(now) {
  const key = `${serial} ${$("focus").value} ${scene.now.id}`;
  if (!now && (key === about || performance.now() - asked < 1000 || $("answer").className && !seen())) return;
  about = key;
  asked = performance.now();
  try {
    const answer = (await answers($("focus").value)).find((a) => a.dialect === $("dialect").value)?.text;
    write($("answer"), answer ?? "No request yet.");
    $("answer").className = !answer ? "" : answer.startsWith("HTTP/1.1 429") ? "refused" : "passed";
  } catch { /* the stream reports the failure, too */ }
}

$("focus").onchange = $("dialect").onchange = () => { code(); showAnswer(true); };
for (const b of document.querySelectorAll("[data-copy]")) b.onclick = () => copy(b, $(b.dataset.copy).textContent);
