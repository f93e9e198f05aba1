// Where the cells of a map are: blocks of cells, one for each group, in lines from left to right.

import type { NodeGroups } from "./types";

export interface Block {
  title: string;
  x: number;
  y: number;
  columns: number;
  /** Positions of the nodes in the map. */
  nodes: number[];
}

export interface Layout {
  cellWidth: number;
  cellHeight: number;
  width: number;
  height: number;
  blocks: Block[];
  /** By node: the position of its cell. */
  x: Float32Array;
  y: Float32Array;
}

const HEAD = 20;
const GAP = 14;
/** The width of the largest cells before they are stretched. */
export const LARGEST = 420;
const STRETCH = 1.35;
const SMALLEST = 5;
const SQUARE = 30; // larger cells are wider than high, because they have text

/** A cell from here on shows everything about its node. */
export const DETAILED = { width: 128, height: 70 };
/** A cell from here on shows the name of its node. */
export const NAMED = { width: 52, height: 34 };

export function grouped(count: number, groups: NodeGroups | null, none: string): { title: string; nodes: number[] }[] {
  if (!groups) return [{ title: "", nodes: Array.from({ length: count }, (_, at) => at) }];
  const found: { title: string; nodes: number[] }[] = groups.values.map((title) => ({ title, nodes: [] }));
  const rest: number[] = [];
  groups.of.forEach((value, at) => (value < 0 ? rest : (found[value]?.nodes ?? rest)).push(at));
  if (rest.length) found.push({ title: none, nodes: rest });
  return found.filter((group) => group.nodes.length > 0);
}

/** Lay out groups in a width, with the largest cells that fit into a height; if none fit, with the smallest. */
export function layOut(groups: { title: string; nodes: number[] }[], width: number, height: number, largest = LARGEST): Layout {
  let low = SMALLEST;
  let high = Math.min(largest, width);
  while (high - low > 0.25) {
    const middle = (low + high) / 2;
    if (placed(groups, width, middle, heightOf(middle)).height <= height) low = middle;
    else high = middle;
  }
  const only = groups.length === 1 ? groups[0] : undefined;
  if (!only || low <= SQUARE) return placed(groups, width, low, heightOf(low));
  // One group takes all the space there is.
  const columns = Math.max(1, Math.min(Math.floor(width / low), only.nodes.length));
  const lines = Math.ceil(only.nodes.length / columns);
  const wide = Math.min(STRETCH * largest, width / columns);
  const room = (height - (only.title ? HEAD : 0)) / lines;
  return placed(groups, width, wide, Math.max(heightOf(low), Math.min(room, 0.66 * wide)));
}

function heightOf(width: number): number {
  return width <= SQUARE ? width : Math.max(SQUARE, 0.6 * width);
}

function placed(groups: { title: string; nodes: number[] }[], width: number, wide: number, high: number): Layout {
  const total = groups.reduce((sum, group) => sum + group.nodes.length, 0);
  const x = new Float32Array(total);
  const y = new Float32Array(total);
  const blocks: Block[] = [];
  const most = Math.max(1, Math.floor(width / wide + 0.001));
  let left = 0;
  let top = 0;
  let line = 0;
  for (const group of groups) {
    const count = group.nodes.length;
    const alone = groups.length === 1;
    const head = group.title ? HEAD : 0;
    // Blocks are twice as wide as high; a title needs some width too.
    const wanted = Math.max(Math.ceil(Math.sqrt((2 * count * high) / wide)), Math.ceil((group.title.length * 6.5 + 34) / wide));
    const columns = Math.min(most, alone ? most : wanted);
    const span = columns * wide;
    if (left > 0 && left + span > width) {
      left = 0;
      top += line + GAP;
      line = 0;
    }
    blocks.push({ title: group.title, x: left, y: top, columns, nodes: group.nodes });
    group.nodes.forEach((node, at) => {
      x[node] = left + (at % columns) * wide;
      y[node] = top + head + Math.floor(at / columns) * high;
    });
    line = Math.max(line, head + Math.ceil(count / columns) * high);
    left += span + GAP;
  }
  return { cellWidth: wide, cellHeight: high, width, height: top + line, blocks, x, y };
}
