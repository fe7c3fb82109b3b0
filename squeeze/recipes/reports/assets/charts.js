const FORMS = {
  text: value => String(value),
  integer: value => grouped(value),
  percent: value => (100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1) + " %",
  bits: value => value.toFixed(3),
  number: value => (Math.abs(value) >= 1000 ? grouped(Math.round(value)) : value.toPrecision(4)),
  scientific: value => (value === 0 ? "0" : value.toExponential(2)),
  seconds: value => value.toFixed(value < 10 ? 2 : 0),
};
const AXES = {integer: "~s", percent: ".1~%", bits: "~r", number: "~r", scientific: "~g", seconds: "~r"};
const shown = (value, form) => (value === null || value === undefined ? "–" : FORMS[form](value));
const isKnown = value => value !== null && value !== undefined;

function look() {  // of all charts
  const quiet = colour("--quiet"), line = colour("--line"), ink = colour("--ink");
  const axis = {labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: 400, labelFontSize: 11, titleFontSize: 12};
  return {
    background: null, font: "system-ui, sans-serif", view: {stroke: null}, axis,
    legend: {labelColor: quiet, titleColor: quiet, titleFontWeight: 400, gradientLength: 160, titleLimit: 300},
    title: {color: ink, fontSize: 12, fontWeight: 400},
    text: {fill: ink},
  };
}
async function draw(id, spec) {
  const large = (spec.data?.values?.length ?? 0) > 3000;
  const options = {actions: false, renderer: large ? "canvas" : "svg", config: look(), tooltip: {theme: dark ? "dark" : "light"}};
  const $schema = "https://vega.github.io/schema/vega-lite/v6.json";
  return (await vegaEmbed($(id), {$schema, ...spec}, options)).view;
}

const NARROW = 0.02;  // share of a value that a scale of shades spans at least, so that what is nearly the same looks alike
function spanned(values) {
  const least = Math.min(...values), most = Math.max(...values), room = Math.max(0, NARROW * Math.abs(most) - (most - least)) / 2;
  return values.length ? [least - room, most + room] : [0, 1];
}

// cells: {name, layer, matrix, value, text}. difference: from blue to orange around 0.
function heatMap(cells, measure, chosen, difference, width) {
  const layers = new Set(cells.map(cell => cell.layer)).size, values = cells.map(cell => cell.value).filter(isKnown);
  const isLog = measure.log && !difference && values.every(value => value > 0);
  const most = Math.max(1e-12, ...values.map(Math.abs));
  const scale = difference
    ? {domain: [-most, 0, most], range: ["#2166ac", colour("--paper"), "#b35806"], interpolate: "lab"}
    : {scheme: {name: "viridis"}, reverse: !dark, type: isLog ? "log" : "linear", nice: false, ...(isLog ? {} : {zero: false, domain: spanned(values)})};
  const x = {field: "layer", type: "ordinal", title: "layer", axis: {labelAngle: 0, labelOverlap: "greedy", labelSeparation: 4}};
  const y = {field: "matrix", type: "nominal", sort: null, title: null, axis: {labelLimit: 180}};
  return {
    description: "Heat map of layers by matrices. Arrow keys move; what is chosen is described behind it.",
    data: {values: cells}, params: [{name: "chosen", value: chosen}],
    width: {step: Math.max(7, Math.min(34, Math.floor((width - 210) / layers)))}, height: {step: 26},
    layer: [
      {
        mark: {type: "rect", cursor: "pointer", stroke: colour("--paper"), strokeWidth: 1, invalid: null},
        encoding: {
          x, y, description: {field: "text"},
          color: {
            condition: {test: "!isValid(datum.value)", value: colour("--line")},
            field: "value", type: "quantitative", scale, legend: {title: measure.title + (difference ? ": difference" : ""), orient: "top", format: isLog ? ".0e" : AXES[measure.form]},
          },
          tooltip: [{field: "name", title: "matrix"}, {field: "text", title: measure.title.split(":")[0]}],
        },
      },
      {transform: [{filter: "datum.name === chosen"}], mark: {type: "rect", fill: null, stroke: colour("--mark"), strokeWidth: 3}, encoding: {x, y}},
    ],
  };
}

function distribution(histogram) {
  const bins = histogram.before.length, width = 2 * histogram.bound / bins, values = [];
  for (const who of ["before", "after"]) {
    histogram[who].forEach((count, i) => values.push({from: i * width - histogram.bound, to: (i + 1) * width - histogram.bound, count, who}));
  }
  const x = {field: "from", type: "quantitative", title: "weight", scale: {nice: false}, axis: {format: "~g", tickCount: 5}};
  const y = {field: "count", type: "quantitative", title: "weights", axis: {format: "~s", tickCount: 4}, stack: null};
  const color = {field: "who", type: "nominal", sort: null, scale: {domain: ["before", "after"], range: [dark ? "#5f7ba6" : "#a9b8d3", colour("--mark")]}, legend: {title: null, orient: "top"}};
  return {
    description: "Histogram of weights before and after", data: {values}, width: 270, height: 130,
    layer: [
      {transform: [{filter: "datum.who === 'before'"}], mark: {type: "bar", binSpacing: 0}, encoding: {x: {...x, bin: "binned"}, x2: {field: "to"}, y, color}},
      {transform: [{filter: "datum.who === 'after'"}], mark: {type: "line", interpolate: "step-after", strokeWidth: 1.5}, encoding: {x, y, color}},
    ],
  };
}

function intervals(estimates, width) {  // a chart for each of what is measured
  const names = [...new Set(estimates.map(one => one.what))], columns = width > 900 ? 2 : 1;
  const longest = Math.max(...estimates.map(one => one.who.length));
  const labels = Math.min(6.5 * longest + 10, width < 520 ? 110 : 220), plot = Math.max(120, Math.min(400, width / columns - labels - 50));
  const y = {field: "who", type: "nominal", sort: null, title: null, axis: {labelLimit: labels, minExtent: labels, maxExtent: labels, domain: false, ticks: false}};
  const chart = what => {
    const values = estimates.filter(one => one.what === what).map(one => ({...one, low: one.low ?? one.value, high: one.high ?? one.value}));
    const least = Math.min(...values.map(one => one.low)), most = Math.max(...values.map(one => one.high)), room = 0.06 * (most - least) || 0.05 * Math.abs(most) || 1;
    const x = {type: "quantitative", scale: {domain: [least - room, most + room], zero: false, nice: false}, title: null, axis: {tickCount: Math.round(plot / 80), labelOverlap: "greedy", labelSeparation: 8}};
    const tooltip = [{field: "who", title: what}, ...["value", "low", "high"].map(field => ({field, type: "quantitative", format: ".5~g"}))];
    return {
      data: {values}, title: {text: what, anchor: "start"}, width: plot, height: {step: 22},
      layer: [
        {mark: {type: "rule", strokeWidth: 2, color: colour("--quiet")}, encoding: {y, x: {...x, field: "low"}, x2: {field: "high"}}},
        {mark: {type: "point", filled: true, size: 60, color: colour("--mark"), opacity: 1}, encoding: {y, x: {...x, field: "value"}, tooltip}},
      ],
    };
  };
  return {description: "What was measured, with intervals", concat: names.map(chart), columns, spacing: {row: 18, column: 30}};
}

// rows: {label, across, up}. The front: of all as good across, none is better up.
function front(rows, across, up, width) {
  const axis = (field, column) => {
    const values = rows.map(row => row[field]), least = Math.min(...values), isWide = least > 0 && Math.max(...values) > 20 * least;
    const scale = isWide ? {type: "log", padding: 20, nice: false} : {zero: false, padding: 20, nice: true};
    return {field, type: "quantitative", title: `${column.title} (${column.better} is better)`, scale, axis: {format: AXES[column.form], tickCount: 6}};
  };
  const x = axis("across", across), y = axis("up", up);
  const order = {field: "across", order: across.better === "less" ? "ascending" : "descending"};
  return {
    description: `${up.title} against ${across.title}, with the Pareto front`, data: {values: rows}, width: width - 120, height: 300,
    layer: [
      {
        transform: [
          {sort: [order, {field: "up", order: up.better === "less" ? "ascending" : "descending"}], window: [{op: up.better === "less" ? "min" : "max", field: "up", as: "best"}, {op: "row_number", as: "number"}], frame: [null, 0]},
          {sort: [{field: "number"}], window: [{op: "lag", field: "best", as: "before"}]},
          {filter: "!isValid(datum.before) || datum.best !== datum.before"},
        ],
        mark: {type: "line", interpolate: (across.better === "less") ? "step-after" : "step-before", strokeDash: [4, 3], color: colour("--quiet"), tooltip: null},
        encoding: {x, y, order: {field: "across"}},
      },
      {mark: {type: "point", filled: true, size: 80, opacity: 1, color: colour("--mark")}, encoding: {x, y, description: {field: "label"}, tooltip: [{field: "label", title: " "}, {field: "across", title: across.title, format: AXES[across.form]}, {field: "up", title: up.title, format: AXES[up.form]}]}},
      {mark: {type: "text", align: "left", dx: 8, dy: -7, fontSize: 11, color: colour("--ink"), limit: 220}, encoding: {x, y, text: {field: "label"}}},
    ],
  };
}

function treeMap(parts, width) {
  const height = 360, known = parts.map(part => part.bits).filter(isKnown), grey = dark ? "#39424c" : "#e4e6e8";
  const fill = "isValid(datum.bits) ? scale('shade', datum.bits) : '" + grey + "'";
  const total = id => parts.reduce((sum, part) => sum + (part.parent === id ? part.bytes : 0), 0);
  return {
    $schema: "https://vega.github.io/schema/vega/v6.json", description: "Tree map of bytes by part", width: width - 4, height, padding: 0,
    data: [
      {name: "tree", values: parts.map(part => ({...part, total: total(part.id)})), transform: [
        {type: "stratify", key: "id", parentKey: "parent"},
        {type: "treemap", field: "bytes", sort: {field: "value", order: "descending"}, round: true, paddingInner: 1, paddingTop: 18, size: [{signal: "width"}, {signal: "height"}]},
      ]},
      {name: "kinds", source: "tree", transform: [{type: "filter", expr: "datum.depth === 1"}, {type: "formula", as: "size", expr: "format(datum.total / 1e6, ',.1f') + ' MB'"}]},
      {name: "leaves", source: "tree", transform: [{type: "filter", expr: "datum.depth === 2"}]},
    ],
    scales: [{name: "shade", type: "linear", domain: spanned(known), range: {scheme: "viridis"}, reverse: !dark, zero: false}],
    marks: [
      {type: "rect", description: "Parts, by bytes", from: {data: "leaves"}, encode: {update: {
        description: {signal: "datum.id + ', ' + format(datum.bytes, ',') + ' bytes'"},
        x: {field: "x0"}, y: {field: "y0"}, x2: {field: "x1"}, y2: {field: "y1"}, fill: {signal: fill},
        tooltip: {signal: "{title: datum.parent.name ? datum.name : datum.id, bytes: format(datum.bytes, ','), bits: isValid(datum.bits) ? format(datum.bits, '.3f') : 'not compressed'}"},
      }}},
      {type: "text", interactive: false, from: {data: "kinds"}, encode: {update: {
        x: {field: "x0", offset: 3}, y: {field: "y0", offset: 13}, fontSize: {value: 11.5}, fill: {value: colour("--ink")},
        text: {signal: "(datum.x1 - datum.x0) > 60 ? datum.name + '  ' + datum.size : ''"}, limit: {signal: "datum.x1 - datum.x0 - 6"},
      }}},
      {type: "text", interactive: false, from: {data: "leaves"}, encode: {update: {
        x: {field: "x0", offset: 4}, y: {field: "y0", offset: 13}, fontSize: {value: 10},
        fill: {signal: `luminance(${fill}) > 0.3 ? 'black' : 'white'`},
        text: {signal: "datum.x1 - datum.x0 > 44 && datum.y1 - datum.y0 > 18 && length(datum.name) < 12 ? datum.name : ''"}, limit: {signal: "datum.x1 - datum.x0 - 6"},
      }}},
    ],
  };
}
