// The address after #: a view, a name in it, and filters.

class Route {
  view = $state("cluster");
  name = $state("");
  params = $state.raw(new URLSearchParams());

  begin(): void {
    const read = (): void => {
      const [path = "", text = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
      const [view = "", ...rest] = path.split("/");
      this.view = view || "cluster";
      this.name = decoded(rest.join("/"));
      this.params = new URLSearchParams(text);
    };
    read();
    addEventListener("hashchange", read);
  }

  /** Put filters into the address, so that it can be shared. */
  filter(values: Record<string, string>): void {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) if (value) params.set(name, value);
    const text = params.toString();
    const path = `#/${this.view}${this.name ? `/${encodeURIComponent(this.name)}` : ""}`;
    history.replaceState(null, "", text ? `${path}?${text}` : path);
    this.params = params;
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = new Route();

export function jobLink(id: string): string {
  return `#/jobs/${encodeURIComponent(id)}`;
}
