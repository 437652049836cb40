// The counts of a sliding window.

// counts returns the counts of both windows at an instant, from the requests up to that instant.
export function counts(tape, t) {
  const { dots, limits: [{ period }] } = tape, start = Math.floor(t / period) * period;
  let before = 0, here = 0, real = 0;
  for (const d of dots) {
    if (!d.allowed || d.t > t) continue;
    if (d.t >= start) here++;
    else if (d.t >= start - period) before++;
    if (d.t > t - period) real++;
  }
  const share = 1 - (t - start) / period;
  return { before, here, real, share, estimate: before * share + here };
}
