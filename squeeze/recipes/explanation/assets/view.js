const HEIGHT = 20, WIDE = 104, view = $("view"), rowsElement = $("rows");

function widthOf(block) {  // bytes of a hex row: whole records where they fit
  const record = Number(/^table (\d+)$/.exec(block.content)?.[1] ?? 0);
  return record > 1 && record <= 32 ? record * Math.floor(32 / record) : 16;
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
    if (block.content !== "text") {
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
const className = (u, count) =>
  "u" + (isIn(here, u, count) ? " here" : followed !== null && isIn(unitAt(followed), u, count) ? " from" : "");
const span = (u, text, count = 1) =>
  `<span class="${className(u, count)}" data-u="${u}" data-n="${count}" style="${styleOf(u, count)}">${text}</span>`;

function textRow(begin, end) {
  let out = "";
  for (let i = begin; i < end;) {
    const u = unitAt(i), count = unitsOf(u), last = Math.min(starts[u + count], end);
    out += span(u, escaped(spelled(data.subarray(i, last))), count);
    i = last;
  }
  return out;
}

function hexRow(begin, end, width) {
  let numbers = "", text = "";
  for (let i = begin; i < end; i++) {
    const u = unitAt(i);
    numbers += span(u, hex(data[i])) + " ";
    text += escaped(data[i] > 31 && data[i] < 127 ? String.fromCharCode(data[i]) : "·");
  }
  return numbers + " ".repeat(3 * (width - (end - begin))) + `<span class="plain">${text}</span>`;
}

function rowHtml(row) {
  const begin = rowStarts[row], end = rowEnd(row), block = blockAt(begin);
  if (block.content !== "text") return `<i>${(begin + facts.offset).toString(16)}</i>` + hexRow(begin, end, widthOf(block));
  const starting = begin === 0 || data[begin - 1] === 10;
  return `<i>${starting ? grouped(lineOf(begin)[0]) : ""}</i>` + textRow(begin, end);
}

const live = new Map();
function build(row) {
  const element = document.createElement("div");
  element.className = "row";
  element.style.top = row * HEIGHT + "px";
  element.innerHTML = rowHtml(row);
  return element;
}
function draw() {
  const first = Math.max(0, Math.floor(view.scrollTop / HEIGHT) - 4);
  const last = Math.min(ROWS, Math.ceil((view.scrollTop + view.clientHeight) / HEIGHT) + 4);
  for (const [row, element] of live) {
    if (row < first || row >= last) {
      element.remove();
      live.delete(row);
    }
  }
  for (let row = first; row < last; row++) {
    if (live.has(row)) continue;
    const element = build(row);
    live.set(row, element);
    rowsElement.append(element);
  }
}
function redraw() {
  for (const [row, element] of live) element.innerHTML = rowHtml(row);
}

function mark() {
  for (const element of rowsElement.querySelectorAll(".u")) {
    const name = className(Number(element.dataset.u), Number(element.dataset.n));
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
  const row = rowAt(starts[here]), target = Math.max(0, Math.min(ROWS - 1, row + rows));
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
  drawCurve();
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
