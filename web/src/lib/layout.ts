// Where the cells of a map are: blocks of cells, one for each group, in lines from left to right.

import type { Groups } from "./types";

export interface Block {
  title: string;
  x: number;
  y: number;
  columns: number;
  /** Positions of the nodes in the map. */
  nodes: number[];
}

export interface Layout {
  cell: number;
  width: number;
  height: number;
  blocks: Block[];
  /** By node: the position of its cell. */
  x: Float32Array;
  y: Float32Array;
}

const HEAD = 20;
const GAP = 14;
const LARGEST = 46;
const SMALLEST = 5;

export function grouped(count: number, groups: Groups | null, none: string): { title: string; nodes: number[] }[] {
  if (!groups) return [{ title: "", nodes: Array.from({ length: count }, (_, at) => at) }];
  const found: { title: string; nodes: number[] }[] = groups.values.map((title) => ({ title, nodes: [] }));
  const rest: number[] = [];
  groups.of.forEach((value, at) => (value < 0 ? rest : (found[value]?.nodes ?? rest)).push(at));
  if (rest.length) found.push({ title: none, nodes: rest });
  return found.filter((group) => group.nodes.length > 0);
}

/** Lay out groups in a width, with the largest cells that fit into a height; if none fit, with the smallest. */
export function layOut(groups: { title: string; nodes: number[] }[], width: number, height: number): Layout {
  let low = SMALLEST;
  let high = LARGEST;
  while (high - low > 0.25) {
    const middle = (low + high) / 2;
    if (placed(groups, width, middle).height <= height) low = middle;
    else high = middle;
  }
  return placed(groups, width, low);
}

function placed(groups: { title: string; nodes: number[] }[], width: number, cell: number): Layout {
  const total = groups.reduce((sum, group) => sum + group.nodes.length, 0);
  const x = new Float32Array(total);
  const y = new Float32Array(total);
  const blocks: Block[] = [];
  const most = Math.max(1, Math.floor(width / cell));
  let left = 0;
  let top = 0;
  let line = 0;
  for (const group of groups) {
    const count = group.nodes.length;
    const alone = groups.length === 1;
    const head = group.title ? HEAD : 0;
    // Blocks are twice as wide as high; a title needs some width too.
    const wanted = Math.max(Math.ceil(Math.sqrt(2 * count)), Math.ceil((group.title.length * 6.500 + 34) / cell));
    const columns = Math.min(most, alone ? most : wanted);
    const wide = columns * cell;
    if (left > 0 && left + wide > width) {
      left = 0;
      top += line + GAP;
      line = 0;
    }
    blocks.push({ title: group.title, x: left, y: top, columns, nodes: group.nodes });
    group.nodes.forEach((node, at) => {
      x[node] = left + (at % columns) * cell;
      y[node] = top + head + Math.floor(at / columns) * cell;
    });
    line = Math.max(line, head + Math.ceil(count / columns) * cell);
    left += wide + GAP;
  }
  return { cell, width, height: top + line, blocks, x, y };
}
