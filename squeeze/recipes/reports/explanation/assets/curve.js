const canvas = $("curve"), LEFT = 36, RIGHT = 10, TOP = 10, BOTTOM = 10;

function means(total, width) {
  const values = new Float64Array(width);
  for (let x = 0; x < width; x++) {
    const begin = Math.floor(x * SIZE / width), end = Math.max(begin + 1, Math.floor((x + 1) * SIZE / width));
    values[x] = (total[Math.min(end, SIZE)] - total[begin]) / (Math.min(end, SIZE) - begin || 1);
  }
  return values;
}

let width = 1;  // of the curve in pixels
function drawCurve() {
  const scale = devicePixelRatio || 1, box = canvas.getBoundingClientRect(), context = canvas.getContext("2d");
  canvas.width = box.width * scale;
  canvas.height = box.height * scale;
  context.scale(scale, scale);
  const height = box.height - TOP - BOTTOM;
  width = Math.max(1, Math.round(box.width - LEFT - RIGHT));
  const curves = [[means(along, width), colour("--ink"), facts.how]];
  if (otherAlong) curves.unshift([means(otherAlong, width), colour("--mark"), facts.against]);
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

const brushElement = $("brush");
let telling = 0;
function moveBrush() {
  const [begin, end] = visible(), x = LEFT + begin / (SIZE || 1) * width, wide = Math.max(4, (end - begin) / (SIZE || 1) * width);
  brushElement.style.width = wide + "px";
  brushElement.style.transform = `translateX(${x}px)`;
  telling ||= setTimeout(tell, 100);
}
function tell() {  // what is in view, to screen readers
  telling = 0;
  const [begin, end] = visible();
  canvas.setAttribute("aria-valuenow", begin + facts.offset);
  canvas.setAttribute("aria-valuetext", `from byte ${grouped(begin + facts.offset)}, ${(end > begin ? (along[end] - along[begin]) / (end - begin) : 0).toFixed(2)} bits per byte in view`);
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
  drawCurve();
  moveBrush();
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
  drawCurve();
  moveBrush();
}).observe(view);
addEventListener("beforeprint", () => {  // the page prints what follows the first row in view
  const first = Math.floor(view.scrollTop / HEIGHT);
  live.clear();
  rough.clear();
  rowsElement.innerHTML = Array.from({length: Math.min(400, ROWS - first)}, (_, i) => build(first + i, false)).join("");
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
