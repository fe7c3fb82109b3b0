const HEIGHT = 20, view = $("view"), rowsElement = $("rows");
const FITTING = (() => {  // characters of a row
  const context = document.createElement("canvas").getContext("2d");
  context.font = getComputedStyle(view).font;
  return Math.floor((view.clientWidth - 16) / context.measureText("0").width);
})();
const WIDE = Math.max(16, FITTING - 13);  // characters of a row of text, after its line number
const BYTES = Math.floor((FITTING - 12) / 4);  // bytes of a row of hex, after its offset

function widthOf(block) {  // bytes of a hex row: as many whole records as fit
  const record = recordOf(block);
  return record > 1 && record <= 32 ? record * Math.max(1, Math.floor(Math.min(32, BYTES) / record)) : BYTES < 16 ? 8 : 16;
}

const rowStarts = (() => {
  let starts = new Uint32Array(1024), count = 0;
  const add = byte => {
    if (count === starts.length) {
      const more = new Uint32Array(2 * count);
      more.set(starts);
      starts = more;
    }
    starts[count++] = byte;
  };
  for (const block of blocks) {
    if (headings.has(block.start)) add(block.start);
    if (!isText(block)) {
      for (let i = block.start; i < block.end; i += widthOf(block)) add(i);
      continue;
    }
    let wide = 0, blank = -1;
    for (let i = block.start; i < block.end; i++) {
      if (i === block.start || data[i - 1] === 10) {
        add(i);
        wide = 0;
      } else if (wide >= WIDE && (data[i] & 0xc0) !== 0x80) {  // at the latest blank, where it is not far
        const start = blank > i - 30 && blank > starts[count - 1] ? blank : i;
        add(start);
        wide = i - start;
      }
      wide += (data[i] & 0xc0) !== 0x80;
      if (data[i] === 32) blank = i + 1;
    }
  }
  return starts.subarray(0, count);
})();
const ROWS = rowStarts.length;
const isHeading = row => row + 1 < ROWS && rowStarts[row] === rowStarts[row + 1];
const rowEnd = row => (row + 1 < ROWS ? rowStarts[row + 1] : SIZE);

function rowAt(byte) {
  let low = 0, high = Math.max(ROWS - 1, 0);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rowStarts[middle] <= byte) low = middle; else high = middle - 1;
  }
  return low;
}

let here = -1, followed = null;
const isIn = (unit, u, count) => unit >= u && unit < u + count;
const className = (u, count, shade) =>
  `u ${shade}` + (isIn(here, u, count) ? " here" : followed !== null && isIn(unitAt(followed), u, count) ? " from" : "");
const span = (u, text, count = 1) =>
  `<span class="${className(u, count, shadeOf(u, count))}" data-u="${u}" data-n="${count}">${text}</span>`;

function textRow(begin, end) {
  let out = "";
  for (let i = begin; i < end;) {
    const u = unitAt(i), count = unitsOf(u), last = Math.min(starts[u + count], end);
    out += span(u, escaped(spelled(data.subarray(i, last))), count);
    i = last;
  }
  return out;
}
function roughRow(begin, end) {  // neighbours of nearly one shade are one element: for text that moves fast
  let out = "", from = begin, shade = null;
  for (let i = begin; i < end;) {
    const u = unitAt(i), count = unitsOf(u), now = (step(u, count) >> 2) * 4 + 2;
    if (now !== shade) {
      if (i > from) out += `<b class="${shadeName(shade)}">${escaped(spelled(data.subarray(from, i)))}</b>`;
      [from, shade] = [i, now];
    }
    i = Math.min(starts[u + count], end);
  }
  return out + `<b class="${shadeName(shade)}">${escaped(spelled(data.subarray(from, end)))}</b>`;
}

const asText = byte => escaped(byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·");
function hexRow(begin, end, width, rough) {
  let numbers = "", text = "";
  for (let i = begin; i < end; i++) {
    numbers += rough ? hex(data[i]) + " " : span(unitAt(i), hex(data[i])) + " ";
    text += asText(data[i]);
  }
  return numbers + " ".repeat(3 * (width - (end - begin))) + `<span class="plain">${text}</span>`;
}

function rowHtml(row, rough) {
  const begin = rowStarts[row], end = rowEnd(row), block = blockAt(begin);
  if (isHeading(row)) return `<i></i><strong>${escaped(headings.get(begin))}</strong>`;
  if (!isText(block)) {
    return `<i>${(begin + facts.offset).toString(16)}</i>` + hexRow(begin, end, widthOf(block), rough);
  }
  const starting = begin === 0 || data[begin - 1] === 10 || headings.has(begin);
  return `<i>${starting ? grouped(lineOf(begin)[0]) : ""}</i>` + (rough ? roughRow : textRow)(begin, end);
}

const SETTLED = 120;  // milliseconds without a jump, after which rough rows are drawn in full
const live = new Map(), rough = new Set();
let settling = 0;
const build = (row, isRough) => `<div class="row" style="top:${row * HEIGHT}px">${rowHtml(row, isRough)}</div>`;
function draw() {
  const first = Math.max(0, Math.floor(view.scrollTop / HEIGHT) - 4);
  const last = Math.min(ROWS, Math.ceil((view.scrollTop + view.clientHeight) / HEIGHT) + 4);
  for (const [row, element] of live) {
    if (row < first || row >= last) {
      element.remove();
      live.delete(row);
      rough.delete(row);
    }
  }
  const jumps = live.size > 0 && 2 * live.size < last - first, made = [];
  for (let row = first; row < last; row++) if (!live.has(row)) made.push(row);
  if (!made.length) return;
  rowsElement.insertAdjacentHTML("beforeend", made.map(row => build(row, jumps)).join(""));
  const elements = rowsElement.children, before = elements.length - made.length;
  made.forEach((row, i) => live.set(row, elements[before + i]));
  if (jumps) {
    made.forEach(row => rough.add(row));
    clearTimeout(settling);
    settling = setTimeout(settle, SETTLED);
  }
}
function settle() {
  for (const row of rough) live.get(row).innerHTML = rowHtml(row, false);
  rough.clear();
}
function redraw() {
  for (const [row, element] of live) element.innerHTML = rowHtml(row, false);
  rough.clear();
}

function mark() {
  for (const element of rowsElement.querySelectorAll(".u")) {
    const u = Number(element.dataset.u), count = Number(element.dataset.n), name = className(u, count, shadeOf(u, count));
    if (element.className !== name) element.className = name;
  }
}
function select(u, scroll) {
  u = Math.max(0, Math.min(UNITS - 1, u));
  if (!UNITS) return;
  here = u;
  followed = sourceOf(u);
  describe(u);
  if (scroll) {
    const top = rowAt(starts[u]) * HEIGHT;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + HEIGHT > view.scrollTop + view.clientHeight) view.scrollTop = top + HEIGHT - view.clientHeight;
    draw();
  }
  mark();
}
function goTo(byte) {
  view.scrollTop = Math.max(0, rowAt(byte) * HEIGHT - view.clientHeight / 3);
  draw();
  select(unitAt(byte), false);
}
const visible = () => [
  rowStarts[Math.min(ROWS - 1, Math.floor(view.scrollTop / HEIGHT))] ?? 0,
  rowEnd(Math.max(0, Math.min(ROWS - 1, Math.floor((view.scrollTop + view.clientHeight) / HEIGHT)))) ?? 0,
];

function vertical(rows) {  // the unit so many rows below, in the same column
  const row = rowAt(starts[here]);
  let target = Math.max(0, Math.min(ROWS - 1, row + rows));
  while (isHeading(target)) target += rows < 0 && target ? -1 : 1;
  const column = starts[here] - rowStarts[row];
  return unitAt(Math.min(rowStarts[target] + column, rowEnd(target) - 1));
}
const trail = [];
const KEYS = {
  ArrowRight: () => select(here + 1, true),
  ArrowLeft: () => select(here - 1, true),
  ArrowDown: () => select(vertical(1), true),
  ArrowUp: () => select(vertical(-1), true),
  PageDown: () => select(vertical(Math.floor(view.clientHeight / HEIGHT) - 1), true),
  PageUp: () => select(vertical(1 - Math.floor(view.clientHeight / HEIGHT)), true),
  Home: () => select(0, true),
  End: () => select(UNITS - 1, true),
  Enter: () => {
    const source = sourceOf(here);
    if (source === null) return;
    trail.push(starts[here]);
    goTo(source);
  },
  Backspace: () => trail.length && goTo(trail.pop()),
};
view.addEventListener("keydown", event => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  KEYS[event.key]();
});
view.addEventListener("mouseover", event => {
  const unit = event.target.closest(".u");
  if (unit) select(Number(unit.dataset.u), false);
});
view.addEventListener("scroll", () => requestAnimationFrame(() => {
  draw();
  moveBrush();
}));
document.addEventListener("click", event => {
  const button = event.target.closest("button.go");
  if (!button) return;
  const byte = Number(button.dataset.to) - facts.offset;
  if (byte < 0 || byte >= SIZE) return;
  if (here >= 0) trail.push(starts[here]);
  goTo(byte);
  view.focus();
});
