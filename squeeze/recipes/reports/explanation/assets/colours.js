// Cividis (Nuñez, Anderton and Renslow 2018), which reads the same with and without red and green; differences are
// from blue to orange.
const CIVIDIS = ["00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838"];
const FIRST = ["2166ac", "b35806"];
const STEPS = 24, FULL = 8;  // shades, and the bits per byte from which all look alike
const shade = share => Math.min(share, 1) ** 0.7;  // what costs little is told apart best
const sheet = document.head.appendChild(document.createElement("style"));  // a class for each shade
let palette = [], differences = [];

const parsed = text => [0, 2, 4].map(i => parseInt(text.slice(i, i + 2), 16));
const mixed = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);
function ramp(t) {
  const x = t * (CIVIDIS.length - 1), i = Math.min(Math.floor(x), CIVIDIS.length - 2);
  return mixed(parsed(CIVIDIS[i]), parsed(CIVIDIS[i + 1]), x - i);
}
function luminance(colour) {
  const [r, g, b] = colour.map(x => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const rgb = colour => `rgb(${colour.map(Math.round)})`;
const rule = (name, colour) =>
  `.${name}{background:${rgb(colour)};color:${luminance(colour) > 0.18 ? "#000000" : "#ffffff"}}`;

function paint() {
  showTheme();
  const paper = parsed(dark ? "0f141b" : "ffffff");
  palette = Array.from({length: STEPS}, (_, k) => {
    const t = k / (STEPS - 1);
    return mixed(paper, ramp(dark ? t : 1 - t), Math.min(1, 0.25 * (t > 0) + 1.5 * t));
  });
  differences = Array.from({length: STEPS}, (_, k) => {
    const t = 2 * k / (STEPS - 1) - 1;
    return mixed(paper, parsed(FIRST[t > 0 ? 1 : 0]), Math.abs(t) * 0.9);
  });
  sheet.textContent = [...palette.map((one, k) => rule("c" + k, one)), ...differences.map((one, k) => rule("d" + k, one))].join("");
}

let measure = "bits";
function step(u, count) {  // of the palette, for so many units
  const begin = starts[u], end = starts[u + count], size = end - begin;
  let bits = along[end] - along[begin];
  if (measure === "difference") {
    const t = Math.max(-1, Math.min(1, (bits - otherAlong[end] + otherAlong[begin]) / size / 4));
    return Math.round((Math.sign(t) * shade(Math.abs(t)) + 1) / 2 * (STEPS - 1));
  }
  if (measure === "model" && C.model_bits[u] !== NOTHING) {
    bits = 0;
    for (let i = u; i < u + count; i++) bits += C.model_bits[i] / 256;
  }
  return Math.round(shade(bits / size / FULL) * (STEPS - 1));
}
const shadeName = k => (measure === "difference" ? "d" : "c") + k;
const shadeOf = (u, count) => shadeName(step(u, count));

function drawScale() {
  const canvas = $("scale"), context = canvas.getContext("2d"), colours = measure === "difference" ? differences : palette;
  for (let x = 0; x < canvas.width; x++) {
    const x0 = x / canvas.width, t = 2 * x0 - 1, k = measure === "difference" ? (Math.sign(t) * shade(Math.abs(t)) + 1) / 2 : shade(x0);
    context.fillStyle = rgb(colours[Math.min(Math.floor(k * STEPS), STEPS - 1)]);
    context.fillRect(x, 0, 1, canvas.height);
  }
  $("least").textContent = measure === "difference" ? "4 less" : "0";
  $("most").textContent = measure === "difference" ? "4 more" : "8";
}
