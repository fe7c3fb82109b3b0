const facts = JSON.parse(new TextDecoder().decode(await inflate("facts")));
const mapped = facts.runs.filter(run => run.matrices.length);
const rows = facts.runs.flatMap(run => run.rows);
let run = mapped[0], against = null, measure = null, chosen = null, map = null;

const known = key => run.matrices.some(one => isKnown(one.values[key]));
const widthOf = id => $(id).getBoundingClientRect().width;
function options(id, entries, value) {
  $(id).innerHTML = entries.map(([key, text]) => `<option value="${escaped(key)}">${escaped(text)}</option>`).join("");
  $(id).value = value;
  $(id).closest("label").hidden = entries.length < 2;
}

function valueOf(matrix) {  // what the heat map shows
  const value = matrix.values[measure] ?? null;
  if (!against) return value;
  const other = against.matrices.find(one => one.name === matrix.name)?.values[measure];
  return isKnown(value) && isKnown(other) ? value - other : null;
}
const textOf = matrix => shown(valueOf(matrix), facts.measures[measure].form);

async function drawMap() {
  const cells = run.matrices.filter(one => one.layer !== null)
    .map(one => ({name: one.name, layer: one.layer, matrix: one.matrix, value: valueOf(one), text: textOf(one)}));
  $("map-card").hidden = !cells.length;
  if (!cells.length) return;
  map = await draw("map", heatMap(cells, facts.measures[measure], chosen?.name ?? "", against !== null, widthOf("map")));
  map.addEventListener("click", (event, item) => item?.datum?.name && select(item.datum.name));
}

function select(name) {
  chosen = run.matrices.find(one => one.name === name) ?? run.matrices[0];
  map?.signal("chosen", chosen.name).run();
  const other = against?.matrices.find(one => one.name === chosen.name);
  const values = Object.entries(facts.measures).filter(([key]) => isKnown(chosen.values[key]))
    .map(([key, one]) => [one.title.split(":")[0], shown(chosen.values[key], one.form) + (other ? ` (${shown(other.values[key], one.form)})` : "")]);
  const lines = [...values, ...chosen.about].map(([key, text]) => `<tr><th scope="row">${escaped(key)}</th><td>${escaped(text)}</td></tr>`);
  const notes = chosen.notes.length ? `<ul>${chosen.notes.map(note => `<li>${escaped(note)}</li>`).join("")}</ul>` : "";
  const histogram = chosen.histogram.before ? chosen.histogram : null;
  const zeros = histogram?.zeros.some(Boolean) ? `<p class="note">Not drawn: weights that are 0, ${grouped(histogram.zeros[0])} before and ${grouped(histogram.zeros[1])} after.</p>` : "";
  $("matrix").innerHTML = `<h3>${escaped(chosen.name)}</h3><table><tbody>${lines.join("")}</tbody></table>${notes}<div id="distribution"></div>${zeros}`;
  for (const line of document.querySelectorAll("#matrices tr")) line.classList.toggle("chosen", line.dataset.name === chosen.name);
  if (histogram) draw("distribution", distribution(histogram));
}

function move(event) {  // in the heat map, by keys
  const steps = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
  if (!steps || !chosen || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const inside = run.matrices.filter(one => one.layer !== null);
  const layers = [...new Set(inside.map(one => one.layer))].sort((a, b) => a - b), kinds = [...new Set(inside.map(one => one.matrix))];
  let x = layers.indexOf(chosen.layer), y = kinds.indexOf(chosen.matrix);
  for (;;) {
    x += steps[0];
    y += steps[1];
    if (x < 0 || y < 0 || x >= layers.length || y >= kinds.length) return;
    const next = inside.find(one => one.layer === layers[x] && one.matrix === kinds[y]);
    if (next) return select(next.name);
  }
}

function listMatrices() {
  const keys = Object.keys(facts.measures).filter(known);
  const columns = [{key: "name", title: "matrix", form: "text"}, ...keys.map(key => ({key, title: facts.measures[key].title.split(":")[0], form: facts.measures[key].form})), {key: "how", title: "method or coding", form: "text"}];
  sortable("matrices", columns, run.matrices.map(one => ({name: one.name, how: one.about[0][1], ...one.values})), row => select(row.name));
}

async function showRun() {
  const keys = Object.keys(facts.measures).filter(known);
  if (!keys.includes(measure)) measure = keys[0];
  options("measure", keys.map(key => [key, facts.measures[key].title]), measure);
  options("against", [["", "nothing"], ...mapped.map((one, i) => [String(i), one.name]).filter(([i]) => mapped[i] !== run)], against ? String(mapped.indexOf(against)) : "");
  await drawMap();
  $("matrices-card").hidden = false;
  listMatrices();
  select(chosen?.name ?? run.matrices[0].name);
  setTimeout(drawParts);  // lies below what is seen first
}

async function drawParts() {
  $("parts-card").hidden = !run?.parts.length;
  if (run?.parts.length) await draw("parts", treeMap(run.parts, widthOf("parts")));
}

async function drawQuality() {
  const several = facts.runs.length > 1;
  const found = facts.runs.flatMap(one => one.quality.map(e => ({...e, who: several && e.who !== one.name ? `${one.name}, ${e.who}` : e.who})));
  $("quality-card").hidden = !found.length;
  if (found.length) await draw("quality", intervals(found, widthOf("quality")));
}

async function drawFront() {
  const across = facts.columns[$("across").value], up = facts.columns[$("up").value];
  const points = plotted.filter(row => isKnown(row[$("across").value]) && isKnown(row[$("up").value]))
    .map(row => ({label: labelOf(row), across: row[$("across").value], up: row[$("up").value]}));
  const places = Object.values(Object.groupBy(points, point => `${point.across} ${point.up}`));
  const shownPoints = places.map(same => ({...same[0], label: same.map(point => point.label).join("; ")}));
  await draw("front", front(shownPoints, across, up, widthOf("front")));
}
const plotted = rows.some(row => row.file === "all files") ? rows.filter(row => row.file === "all files") : rows;
const differ = key => plotted.some(row => row[key] !== plotted[0][key]);
const labelOf = row => [row.run ?? row.tool, differ("file") && row.file, differ("context") && grouped(row.context)].filter(Boolean).join(", ");

function compare() {
  const present = Object.entries(facts.columns).filter(([key]) => rows.some(row => isKnown(row[key])));
  sortable("rows", present.map(([key, column]) => ({key, ...column})), rows);
  const axes = present.filter(([key, column]) => column.better && rows.filter(row => isKnown(row[key])).length > 1).map(([key, column]) => [key, column.title]);
  const first = wanted => wanted.find(key => axes.some(([one]) => one === key)) ?? axes[0]?.[0];
  if (axes.length < 2) return;
  options("across", axes, first(["compressing", "bytes", "bits"]));
  options("up", axes, first($("across").value === "compressing" ? ["share"] : ["rise", "kl", "perplexity", "seconds", "share"]));
  for (const id of ["across", "up"]) $(id).addEventListener("change", drawFront);
}

async function drawAll() {
  showTheme();
  if ($("up")?.value) await drawFront();
  await drawQuality();
  if (!run) return;
  $("map-card").hidden = $("parts-card").hidden = false;
  await showRun();
}

if (rows.length > 1) compare();
if (mapped.length) options("run", mapped.map((one, i) => [String(i), one.name]), "0");
$("run").addEventListener("change", event => {
  run = mapped[Number(event.target.value)];
  against = against === run ? null : against;
  showRun();
});
$("against").addEventListener("change", event => {
  against = event.target.value ? mapped[Number(event.target.value)] : null;
  drawMap().then(() => select(chosen.name));
});
$("measure").addEventListener("change", event => {
  measure = event.target.value;
  drawMap();
});
$("map").addEventListener("keydown", move);
$("theme").addEventListener("click", () => {
  dark = !dark;
  drawAll();
});
await drawAll();
document.documentElement.dataset.ready = "";
