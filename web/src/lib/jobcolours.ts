// A colour for each job. White text on one, and one on the background of either theme, has enough contrast.

const PALETTE = ["#006dd5", "#ba5602", "#0f7f53", "#bf4392", "#836d03", "#097e93", "#8654cc", "#cf403f", "#507b07", "#5762d9"];

/** Jobs that were submitted one after another have different colours. A job without an id is one of other users. */
export function colourOf(job: string): string {
  if (!job) return "var(--disabled)";
  let hash = 0;
  for (const char of job) hash = (hash * 31 + (char.codePointAt(0) ?? 0)) >>> 0;
  const place = /^\d{1,9}$/.test(job) ? Number(job) : hash;
  return PALETTE[place % PALETTE.length] ?? "#6b7480";
}
