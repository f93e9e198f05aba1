// Dark or light: as the system prefers, until a person chooses.

const KEY = "fairlead-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  dark = $state(false);

  begin(): void {
    this.#show(localStorage.getItem(KEY));
    system.addEventListener("change", () => this.#show(localStorage.getItem(KEY)));
  }

  toggle(): void {
    const next = this.dark ? "light" : "dark";
    localStorage.setItem(KEY, next);
    this.#show(next);
  }

  #show(chosen: string | null): void {
    this.dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
  }
}

export const theme = new Theme();

/** The colours of the theme, for a canvas. */
export function colours(): (name: string) => string {
  const style = getComputedStyle(document.documentElement);
  const found = new Map<string, string>();
  return (name) => {
    let value = found.get(name);
    if (value === undefined) {
      value = style.getPropertyValue(`--${name}`).trim();
      found.set(name, value);
    }
    return value;
  };
}

/** Text for a canvas, cut to a width. */
export function fitted(context: CanvasRenderingContext2D, text: string, wide: number): string {
  if (context.measureText(text).width <= wide) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > wide) cut = cut.slice(0, -1);
  return `${cut}…`;
}
