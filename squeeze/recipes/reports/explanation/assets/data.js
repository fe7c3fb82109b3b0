const facts = JSON.parse($("facts").textContent);
const KINDS = {i4: Int32Array, u2: Uint16Array, u1: Uint8Array, i1: Int8Array};
const NOTHING = 0xffff, DICTIONARY = -0x80000000;

async function unpack() {
  const buffer = await inflate("columns"), columns = {};
  let offset = 0;
  for (const [name, kind, size] of facts.columns) {
    columns[name] = new KINDS[kind](buffer, offset, size);
    offset += columns[name].byteLength;
  }
  return columns;
}

const C = await unpack();
const data = C.data, SIZE = data.length, UNITS = C.bits.length;
const starts = new Uint32Array(UNITS + 1);  // from the first byte that is shown
for (let u = 0; u < UNITS; u++) starts[u + 1] = starts[u] + (C.sizes ? C.sizes[u] : 1);

function unitAt(byte) {
  if (!C.sizes) return byte;
  let low = 0, high = UNITS - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= byte) low = middle; else high = middle - 1;
  }
  return low;
}

const blocks = facts.pieces  // bytes in a row of one block, or of a part of one
  .map(([start, end, number]) => ({
    codec: facts.blocks[number][0], content: facts.blocks[number][1],
    begin: start, start: Math.max(start - facts.offset, 0), end: Math.min(end - facts.offset, SIZE),
  }))
  .filter(b => b.start < b.end);

const recordOf = block => Number(/^table (\d+)$/.exec(block.content)?.[1] ?? 0);  // bytes of a table's record, else 0
function blockAt(byte) {
  let low = 0, high = blocks.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (blocks[middle].start <= byte) low = middle; else high = middle - 1;
  }
  return blocks[low];
}

// The names of the sections that begin at a byte: in opened files, a row above each is its heading.
const headings = new Map(facts.headings ? facts.sections.map(([name, start]) => [start - facts.offset, name]) : []);
const tops = [...headings.keys()];
function topOf(byte) {  // where the lines of a byte's text are counted from
  let low = 0, high = tops.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tops[middle] <= byte) low = middle + 1; else high = middle;
  }
  return low ? tops[low - 1] : null;
}

// Bits along the bytes, summed: those of a token lie evenly on its bytes.
function sums(bitsOf) {
  const total = new Float64Array(SIZE + 1);
  for (let u = 0; u < UNITS; u++) {
    const size = starts[u + 1] - starts[u], each = bitsOf(u) / size;
    for (let i = starts[u]; i < starts[u + 1]; i++) total[i + 1] = total[i] + each;
  }
  return total;
}

const bitsOf = u => C.bits[u] / 256;
const along = sums(bitsOf);
let otherAlong = null;
if (C.other_bits) {
  otherAlong = new Float64Array(SIZE + 1);
  for (let i = 0; i < SIZE; i++) otherAlong[i + 1] = otherAlong[i] + C.other_bits[i] / 256;
}

function shown(byte) {  // one byte on its own
  if (byte === 10) return "↵";
  if (byte === 9) return "⇥";
  if (byte < 32 || byte === 127) return "^" + String.fromCharCode(byte ^ 64);  // as in ^M: fonts lack other signs
  return byte < 127 ? String.fromCharCode(byte) : "·";
}

const utf8 = new TextDecoder("utf-8", {fatal: true});
function spelled(bytes) {  // a symbol's bytes as text where they are text
  if (bytes.length === 1) return shown(bytes[0]);
  try {
    return utf8.decode(bytes).replace(/[\x00-\x1f\x7f]/g, c => shown(c.charCodeAt(0)));
  } catch {
    return Array.from(bytes, shown).join("");
  }
}
// Whether a block is shown as text; others are shown as hexadecimal digits.
function isText(block) {
  return block.content === "text" || block.content === "lines";
}
// How many units make the character that begins with this one: more than one where units are bytes.
function unitsOf(u) {
  const byte = data[starts[u]], size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
  if (size === 1 || starts[u] + size !== starts[u + size] || !isText(blockAt(starts[u]))) return 1;
  try {
    utf8.decode(data.subarray(starts[u], starts[u] + size));
    return size;
  } catch {
    return 1;
  }
}
const hex = byte => byte.toString(16).padStart(2, "0");
const percent = p => (p >= 0.995 ? "99+" : p >= 0.1 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)) + " %";
