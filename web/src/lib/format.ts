// Values as text for people.

/** Text that a user gave, with control characters made visible and characters that turn text around taken out. */
export function plain(text: string): string {
  return [...text]
    .map((char) => {
      const code = char.codePointAt(0) ?? 0;
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      if (code === 0x7f) return "\u2421";
      const hidden = (code >= 0x80 && code < 0xa0) || (code >= 0x200b && code <= 0x200f);
      const turning = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0xfeff;
      return hidden || turning ? "\ufffd" : char;
    })
    .join("");
}

export function duration(seconds: number): string {
  const whole = Math.max(0, seconds);
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 36_000) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  if (whole < 2 * 86_400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86_400)} d`;
}

export function clock(time: number): string {
  return new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function moment(time: number): string {
  return new Date(time * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export function number(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

export function percent(value: number): string {
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

export function plural(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function amount(name: string, value: number): string {
  if (name !== "memory") return `${number(value)} ${name}`;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at++;
  }
  return `${number(value)} ${units[at]} memory`;
}

export function amounts(of: Record<string, number>): string {
  return Object.entries(of)
    .map(([name, value]) => amount(name, value))
    .join(", ");
}
