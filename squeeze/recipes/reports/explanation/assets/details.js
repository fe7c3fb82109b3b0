const bar = (name, share, text, less) =>
  `<tr><th scope="row"><code>${name}</code></th><td class="n bar${less ? " less" : ""}" style="--w:${share}">${text}</td></tr>`;
const quoted = bytes => escaped(spelled(bytes).replace(/^ | $/g, "␣"));
const lineOf = (() => {  // of a byte, from 1
  const ends = [];
  for (let i = data.indexOf(10); i >= 0; i = data.indexOf(10, i + 1)) ends.push(i);
  const before = byte => {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < byte) low = middle + 1; else high = middle;
    }
    return low;
  };
  return byte => {
    const top = topOf(byte), lines = before(byte), last = lines ? ends[lines - 1] : -1;
    return top === null ? [facts.line + lines, byte - last] : [1 + lines - before(top), byte - Math.max(last, top - 1)];
  };
})();

function sourceOf(u) {  // the byte that is shown which a unit's match points to; null for none
  const source = starts[u] - C.distances[u];
  return C.lengths[u] && source >= 0 && source < SIZE ? source : null;
}

function expected(u) {
  if (!C.symbols) return "";
  let rows = "";
  for (let k = 0; k < 5; k++) {
    const symbol = C.symbols[5 * u + k], p = C.chances[5 * u + k] / 255;
    if (symbol === NOTHING) continue;
    const bytes = Uint8Array.from(facts.symbols[symbol], c => c.charCodeAt(0));
    rows += bar(quoted(bytes), p, p ? percent(p) : "< 0.2 %");
  }
  if (!rows) return "";
  const who = blockAt(starts[u]).codec === "tokenwise" ? "language model" : "network";
  const alone = C.model_bits && C.model_bits[u] !== NOTHING ? `, which alone takes ${(C.model_bits[u] / 256).toFixed(2)} bits` : "";
  return `<h2>Expected by the ${who}${alone}</h2><table>${rows}</table>`;
}

function rival(u) {
  const shift = C.rival_shifts[u];
  if (shift === 255 || C.rivals[u] < 3) return "";
  const first = ((data[starts[u]] ^ (1 << shift)) >> shift) << shift, last = first + (1 << shift) - 1;
  const name = b => `<code>${b > 32 && b < 127 ? escaped(String.fromCharCode(b)) : hex(b)}</code>`;
  const which = first === last ? name(first) : `${name(first)} to ${name(last)}`;
  return `<p>Most likely instead: ${which}, ${percent(C.rivals[u] / 255)}</p>`;
}

function parts(u) {
  let rows = "";
  const most = Math.max(1, ...[0, 1, 2].map(k => Math.abs(C.shares[3 * u + k]) / 8));
  for (let k = 0; k < 3; k++) {
    const share = C.shares[3 * u + k] / 8;
    if (share) rows += bar(escaped(facts.parts[C.parts[3 * u + k]]), Math.abs(share) / most, share.toFixed(1), share < 0);
  }
  return rows ? `<h2>Decided by, in bits saved</h2><table>${rows}</table>` : "";
}

function match(u) {
  if (!C.lengths[u]) return "";
  const length = C.lengths[u] === 255 ? "255 or more" : C.lengths[u];
  if (C.distances[u] === DICTIONARY) return `<p>Match in the dictionary, ${length} before agree.</p>`;
  const source = starts[u] - C.distances[u], place = grouped(source + facts.offset);
  if (sourceOf(u) === null) return `<p>Match at byte ${place}, ${length} before agree.</p>`;
  const says = data[source] === data[starts[u]] ? "and it is right" : `and it says <code>${quoted(data.subarray(source, source + 1))}</code>`;
  return `<p>Match at byte <button type="button" class="go" data-to="${source + facts.offset}">${place}</button>: ${length} before agree, ${says}.</p>`;
}

function field(byte, column) {  // of text in columns: the name of the one that a byte is in
  if (!facts.separator) return "";
  let number = 0, isQuoted = false;
  for (let i = byte - column + 1; i < byte; i++) {
    if (data[i] === 34) isQuoted = !isQuoted;
    if (!isQuoted && data[i] === facts.separator.charCodeAt(0)) number++;
  }
  return `, field ${facts.fields[number] ? escaped(facts.fields[number]) : number + 1}`;
}
function section(byte) {  // of a program or a checkpoint: the name of the part that a byte is in
  let low = 0, high = facts.sections.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (facts.sections[middle][1] <= byte) low = middle + 1; else high = middle;
  }
  if (!low || byte >= facts.sections[low - 1][2]) return "";
  const [name, start] = facts.sections[low - 1];
  return ` · ${escaped(name)} + 0x${(byte - start).toString(16)}`;
}
function placeOf(byte) {
  const block = blockAt(byte), record = recordOf(block), [line, column] = lineOf(byte);
  if (isText(block)) return `line ${grouped(line)}, column ${grouped(column)}${field(byte, column)}${facts.headings ? section(byte + facts.offset) : ""}`;
  const inside = record ? `, byte ${(byte + facts.offset - block.begin) % record} of ${record} in the record` : "";
  return `offset 0x${(byte + facts.offset).toString(16)}${inside}${section(byte + facts.offset)}`;
}

function describe(u) {
  if (u < 0 || u >= UNITS) return;
  const byte = starts[u], end = starts[u + unitsOf(u)], place = placeOf(byte);
  const bits = along[end] - along[byte], bytes = data.subarray(byte, end);
  const numbers = bytes.length > 8 ? "" : ` · hex ${Array.from(bytes, hex).join(" ")}`;
  const other = otherAlong ? ` · at ${escaped(facts.against)}: ${(otherAlong[end] - otherAlong[byte]).toFixed(2)} bits` : "";
  $("details").innerHTML =
    `<span class="cost">${bits.toFixed(2)} bits</span><span class="glyph">${quoted(bytes)}</span>` +
    `<p>byte ${grouped(byte + facts.offset)} · ${place}${numbers}${other}</p>` +
    expected(u) + rival(u) + parts(u) + match(u);
}
