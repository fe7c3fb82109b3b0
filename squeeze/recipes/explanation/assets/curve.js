const canvas = $("curve"), LEFT = 36, RIGHT = 10, TOP = 10, BOTTOM = 10;

function means(total, width) {
  const values = new Float64Array(width);
  for (let x = 0; x < width; x++) {
    const begin = Math.floor(x * SIZE / width), end = Math.max(begin + 1, Math.floor((x + 1) * SIZE / width));
    values[x] = (total[Math.min(end, SIZE)] - total[begin]) / (Math.min(end, SIZE) - begin || 1);
  }
  return values;
}

let plain = null;  // the curve without the brush
function drawPlain() {
  const scale = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = box.width * scale;
  canvas.height = box.height * scale;
  const width = Math.max(1, Math.round(box.width - LEFT - RIGHT)), height = box.height - TOP - BOTTOM;
  plain = document.createElement("canvas");
  plain.width = canvas.width;
  plain.height = canvas.height;
  const context = plain.getContext("2d");
  context.scale(scale, scale);
  const curves = [[means(along, width), colour("--ink"), `level ${facts.level}`]];
  if (otherAlong) curves.unshift([means(otherAlong, width), colour("--mark"), `level ${facts.against}`]);
  const highest = Math.max(0.5, ...curves.map(([values]) => values.reduce((a, b) => Math.max(a, b), 0)));
  const y = value => TOP + height * (1 - value / highest);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  const tick = highest > 4 ? 2 : highest > 2 ? 1 : 0.5;
  for (let value = 0; value <= highest; value += tick) {
    context.fillStyle = colour("--line");
    context.fillRect(LEFT, Math.round(y(value)), width, 1);
    context.fillStyle = colour("--quiet");
    context.fillText(String(value), LEFT - 8, y(value));
  }
  curves.forEach(([values, ink, name], number) => {
    const isMain = number === curves.length - 1;
    context.beginPath();
    values.forEach((value, x) => context.lineTo(LEFT + x, y(value)));
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.stroke();
    context.fillStyle = ink;
    if (otherAlong) context.fillText(name, LEFT + width - 4, TOP + 6 + 14 * (1 - number));
    if (isMain) {
      context.lineTo(LEFT + width, y(0));
      context.lineTo(LEFT, y(0));
      context.globalAlpha = 0.12;
      context.fill();
      context.globalAlpha = 1;
    }
  });
}

function drawCurve() {
  if (!plain) drawPlain();
  const scale = devicePixelRatio || 1, context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(plain, 0, 0);
  context.scale(scale, scale);
  const [begin, end] = visible(), width = canvas.width / scale - LEFT - RIGHT;
  const x = LEFT + begin / (SIZE || 1) * width, w = Math.max(4, (end - begin) / (SIZE || 1) * width);
  context.fillStyle = context.strokeStyle = colour("--accent");
  context.globalAlpha = 0.14;
  context.fillRect(x, 2, w, canvas.height / scale - 4);
  context.globalAlpha = 1;
  context.strokeRect(x, 2, w, canvas.height / scale - 4);
  canvas.setAttribute("aria-valuenow", begin + facts.offset);
  canvas.setAttribute("aria-valuetext", `from byte ${grouped(begin + facts.offset)}, ${(end > begin ? (along[end] - along[begin]) / (end - begin) : 0).toFixed(2)} bits a byte in view`);
}

function brush(event) {
  const box = canvas.getBoundingClientRect(), share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  const byte = Math.max(0, Math.min(SIZE - 1, Math.floor(share * SIZE)));
  view.scrollTop = Math.max(0, rowAt(byte) * HEIGHT - view.clientHeight / 2);
}
canvas.addEventListener("pointerdown", event => {
  canvas.setPointerCapture(event.pointerId);
  brush(event);
});
canvas.addEventListener("pointermove", event => canvas.hasPointerCapture(event.pointerId) && brush(event));
canvas.addEventListener("keydown", event => {
  const screen = view.clientHeight, jumps = {ArrowRight: screen, ArrowLeft: -screen, PageDown: 10 * screen, PageUp: -10 * screen, Home: -1e9, End: 1e9};
  if (!(event.key in jumps)) return;
  event.preventDefault();
  view.scrollTop += jumps[event.key];
});
canvas.setAttribute("aria-valuemin", facts.offset);
canvas.setAttribute("aria-valuemax", facts.offset + SIZE);

function repaint() {
  paint();
  drawScale();
  redraw();
  drawPlain();
  drawCurve();
}
$("theme").addEventListener("click", () => {
  dark = !dark;
  repaint();
});
$("measure").addEventListener("change", event => {
  measure = event.target.value;
  repaint();
});
new ResizeObserver(() => {
  draw();
  drawPlain();
  drawCurve();
}).observe(view);
addEventListener("beforeprint", () => {  // the page prints what follows the first row in view
  const first = Math.floor(view.scrollTop / HEIGHT);
  live.clear();
  rowsElement.replaceChildren(...Array.from({length: Math.min(400, ROWS - first)}, (_, i) => build(first + i)));
});
addEventListener("afterprint", () => {
  rowsElement.replaceChildren();
  draw();
});

if (!C.model_bits) $("measure-model").remove();
rowsElement.style.height = ROWS * HEIGHT + "px";
repaint();
draw();
select(0, false);
document.documentElement.dataset.ready = "";
