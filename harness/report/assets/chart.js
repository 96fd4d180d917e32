"use strict";
// Draws the charts of the page from the values in its data: marks with intervals, labels next to the lines, and a
// tooltip for the mark next to the pointer.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LABEL = 12, GAP = 15; // height of a label in pixels, and the distance of two
const WIDEST_LABEL = 0.42, WIDEST_POINT = 0.6; // widths of a label at the side of a chart and within, as shares of it
const MOST_LABELS = 50; // in a chart; tooltips name the other lines
const NEAR = 40; // pixels from the pointer to the mark of a tooltip

function append(parent, name, attributes = {}, text) {
  const child = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  return parent.appendChild(child);
}

const widthOf = (() => {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${LABEL}px ${getComputedStyle(document.body).fontFamily}`;
  return (text) => context.measureText(text).width;
})();

function shortened(text, width) {
  if (widthOf(text) <= width) return text;
  let end = text.length;
  while (end > 1 && widthOf(`${text.slice(0, end)}…`) > width) end -= 1;
  return `${text.slice(0, end).trimEnd()}…`;
}

function plain(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)) return value.toExponential().replace("e+", "e");
  return value >= 1e4 ? counted(value) : String(Number(value.toPrecision(6)));
}

function counted(value) {
  for (const [scale, unit] of [[1e6, "M"], [1e3, "k"]]) if (value >= scale) return `${Number((value / scale).toPrecision(6))}${unit}`;
  return String(Number(value.toPrecision(6)));
}

function sized(bytes) {
  for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (bytes >= scale) return `${Number((bytes / scale).toPrecision(3))} ${unit}`;
  return `${bytes} B`;
}

const FORMATS = { number: plain, count: counted, bytes: sized, ratio: (value) => `${plain(value)}x`, percent: (value) => `${plain(100 * value)} %` };

function powers(base, low, high, stride, factors) {
  const found = [];
  const first = Math.floor(Math.log(low) / Math.log(base)) - 1;
  for (let power = Math.floor(first / stride) * stride; base ** power <= high; power += stride) {
    for (const factor of factors) found.push(factor * base ** power);
  }
  return found.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001).map((tick) => Number(tick.toPrecision(9)));
}

function steps(low, high, most) {
  const raw = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.9999) || 10);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-6); n * step <= high + step * 1e-6; n += 1) found.push(Number((n * step).toPrecision(9)));
  return found;
}

// Returns the most ticks that fit, of round values.
function ticksOf(axis, [low, high], fits, length, distance) {
  if (axis.ticks.length) {
    let chosen = [];
    for (const tick of [...axis.ticks].reverse()) if (fits([tick, ...chosen])) chosen = [tick, ...chosen];
    return chosen;
  }
  const even = () => {
    for (let most = Math.floor(length / distance); most > 1; most -= 1) {
      const found = steps(low, high, most);
      if (fits(found)) return found;
    }
    return [];
  };
  if (!axis.is_logarithmic) return even();
  const strides = [1, 2, 3, 4, 6, 8, 10];
  const candidates = axis.unit === "bytes"
    ? strides.map((stride) => powers(2, low, high, stride, [1]))
    : [...[[1, 2, 5], [1, 3], [1]].map((factors) => powers(10, low, high, 1, factors)), ...strides.map((stride) => powers(10, low, high, stride, [1]))];
  const found = candidates.find(fits) || [];
  return found.length > 2 ? found : [found, even()].sort((a, b) => b.length - a.length)[0];
}

function domainOf(axis, values) {
  const known = [...values, ...axis.ticks, axis.includes].filter((v) => Number.isFinite(v) && v !== null && (v > 0 || !axis.is_logarithmic));
  let low = Math.min(...known), high = Math.max(...known);
  if (axis.is_logarithmic) {
    const room = Math.max(Math.log(high / low) * 0.05, 0.04);
    return [low / Math.exp(room), high * Math.exp(room)];
  }
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// Returns the function from values to pixels, with its ticks.
function scaleOf(axis, values, start, end, distance) {
  const domain = domainOf(axis, values), of = axis.is_logarithmic ? Math.log : (value) => value;
  const [low, high] = domain.map(of);
  const scale = (value) => start + ((of(value) - low) / (high - low)) * (end - start);
  const format = FORMATS[axis.unit] || plain;
  const fits = (ticks) => ticks.every((tick, n) => !n || Math.abs(scale(tick) - scale(ticks[n - 1])) >= (distance || (widthOf(format(tick)) + widthOf(format(ticks[n - 1]))) / 2 + 14));
  scale.format = format;
  scale.ticks = ticksOf(axis, domain, fits, Math.abs(end - start), distance || 50);
  return scale;
}

// Moves positions apart by at least a gap, each as little as possible, between two limits.
function spread(wanted, gap, low, high) {
  const order = wanted.map((_, n) => n).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [];
  let last = low - gap;
  for (const n of order) last = placed[n] = Math.max(wanted[n], last + gap);
  let next = high + gap;
  for (const n of [...order].reverse()) next = placed[n] = Math.min(placed[n], next - gap);
  return placed;
}

function lookOf(form) {
  const [colour, mark] = DATA.looks[form.name];
  return { colour: `var(--c${colour})`, mark: `#mark-${mark}` };
}

function mark(parent, form, x, y, size = 13) {
  append(parent, "use", { href: lookOf(form).mark, x: x - size / 2, y: y - size / 2, width: size, height: size, fill: lookOf(form).colour });
}

function label(parent, form, x, y, width, anchor = "start") {
  const text = append(parent, "text", { x, y, class: "label", "text-anchor": anchor }, shortened(form.label, width));
  append(text, "title", {}, form.name);
}

function line(parent, x1, y1, x2, y2, name, extra = {}) {
  append(parent, "line", { x1, y1, x2, y2, class: name, ...extra });
}

function gridOf(svg, figure, x, y, left, right, top, bottom) {
  for (const tick of x.ticks) {
    line(svg, x(tick), top, x(tick), bottom, "grid");
    append(svg, "text", { x: x(tick), y: bottom + 16, class: "tick", "text-anchor": "middle" }, x.format(tick));
  }
  append(svg, "text", { x: (left + right) / 2, y: bottom + 34, class: "axis", "text-anchor": "middle" }, figure.x.label);
  if (!y) return;
  for (const tick of y.ticks) {
    line(svg, left, y(tick), right, y(tick), "grid");
    append(svg, "text", { x: left - 7, y: y(tick) + 4, class: "tick", "text-anchor": "end" }, y.format(tick));
  }
  append(svg, "text", { x: 0, y: 13, class: "axis" }, figure.y.label);
}

function groupsOf(svg, figure, marks) {
  const groups = new Map();
  for (const [form] of marks) {
    if (!groups.has(form)) {
      groups.set(form, append(svg, "g", { class: "form", style: `--c: ${lookOf(figure.forms[form]).colour}` }));
    }
  }
  return groups;
}

function pathOf(points) {
  return points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

// A list of methods: a line for each mark, with its interval along x.
function drawDots(svg, figure, marks, width) {
  const names = marks.map(([form]) => figure.forms[form]);
  const left = Math.min(Math.max(...names.map((form) => widthOf(form.label))) + 28, width * WIDEST_LABEL);
  const right = width - 18, top = 8, bottom = top + marks.length * 21;
  const x = scaleOf(figure.x, marks.flatMap(([, value, , low, high]) => [value, low, high]), left + 8, right);
  const groups = groupsOf(svg, figure, marks);
  gridOf(svg, figure, x, null, left, right, top, bottom);
  if (figure.rule !== null) line(svg, x(figure.rule), top, x(figure.rule), bottom, "rule");
  const places = marks.map(([form, value, , low, high], n) => {
    const group = groups.get(form), y = top + (n + 0.5) * 21;
    line(group, left, y, right, y, "row");
    if (low !== null && high !== null) line(group, x(low), y, x(high), y, "interval");
    mark(group, names[n], x(value), y);
    label(group, names[n], left - 8, y + 4, left - 12, "end");
    return [x(value), y];
  });
  for (const group of groups.values()) svg.append(group);
  return { height: bottom + 42, places };
}

function drawPlane(svg, figure, marks, width) {
  const forms = [...new Set(marks.map(([form]) => form))];
  const isLines = figure.kind === "lines";
  const labels = isLines ? Math.min(Math.max(...forms.map((n) => widthOf(figure.forms[n].label))) + 34, width * WIDEST_LABEL) : 12;
  const top = isLines ? 26 : 38, bottom = top + Math.max(230, Math.min(forms.length, MOST_LABELS) * (isLines ? GAP : 6) + (isLines ? 12 : 240));
  const height = bottom + 44;
  const xs = marks.map(([, x]) => x), ys = marks.flatMap(([, , y, low, high]) => [y, low, high]);
  const path = figure.path.filter((point) => point.every((value) => value > 0));
  const limit = isLines ? Infinity : limitOf(ys.filter((value) => value !== null), figure.y);
  const y = scaleOf(figure.y, [...ys, ...path.map((point) => point[1])].filter((value) => value <= limit), bottom, top, 26);
  const left = Math.max(20, ...y.ticks.map((tick) => widthOf(y.format(tick)) + 10)), right = width - labels;
  const x = scaleOf(figure.x, [...xs, ...path.map((point) => point[0])], left + 6, right - 8);
  gridOf(svg, figure, x, y, left, right, top, bottom);
  if (figure.rule !== null) line(svg, left, y(figure.rule), right, y(figure.rule), "rule");
  const corners = path.map(([a, b]) => [x(a), b > limit ? top - 6 : y(b)]);
  if (corners.length > 1) append(svg, "path", { d: pathOf(corners), class: "path" });
  const groups = groupsOf(svg, figure, marks);
  const places = marks.map(([form, a, b, low, high]) => {
    if (low !== null && high !== null) line(groups.get(form), x(a), y(low), x(a), y(high), "interval");
    return [x(a), b > limit ? top - 6 : y(b)];
  });
  for (const [form, group] of groups) {
    const own = places.filter((_, n) => marks[n][0] === form);
    if ((isLines || figure.joined) && own.length > 1) append(group, "path", { d: pathOf(own), class: isLines ? "line" : "line thin" });
  }
  marks.forEach(([form], n) => mark(groups.get(form), figure.forms[form], ...places[n], marks.length > 200 ? 9 : 13));
  if (isLines) labelEnds(groups, figure, marks, places, forms, right, width, top, bottom);
  else labelPoints(groups, figure, marks, places, path, corners, { left, right: width, top, bottom }, (value) => (value > limit ? `: ${y.format(Number(value.toPrecision(3)))} ↑` : ""));
  return { height, places };
}

function lastOf(marks, form) {
  return marks.reduce((found, [other], n) => (other === form ? n : found), 0);
}

// Labels lines at their right ends.
function labelEnds(groups, figure, marks, places, allForms, right, width, top, bottom) {
  const forms = allForms.slice(0, MOST_LABELS);
  const ends = forms.map((form) => places[lastOf(marks, form)]);
  const placed = spread(ends.map(([, y]) => y), GAP, top, bottom + 10);
  forms.forEach((form, n) => {
    const group = groups.get(form);
    append(group, "path", { d: pathOf([[ends[n][0] + 7, ends[n][1]], [right + 2, placed[n]], [right + 8, placed[n]]]), class: "leader" });
    mark(group, figure.forms[form], right + 15, placed[n], 10);
    label(group, figure.forms[form], right + 23, placed[n] + 4, width - right - 24);
  });
}

// Returns the value above which marks lie at the upper edge, with their value in the label, so that a few outliers do not
// press all others together.
function limitOf(values, axis) {
  const sorted = [...values].sort((a, b) => a - b);
  const limit = sorted[Math.floor(0.75 * (sorted.length - 1))] * 4;
  return axis.is_logarithmic && sorted.length > 3 ? limit : Infinity;
}

// Returns places for a label around a mark, the nearest first: its offset, and which end of the text is there.
const AROUND = [[10, 4, "start"], [-10, 4, "end"], [0, -10, "middle"], [0, 19, "middle"], [9, -8, "start"], [9, 17, "start"], [-9, -8, "end"], [-9, 17, "end"]];
for (const radius of [26, 40, 56, 74, 94]) {
  for (let n = 0; n < 16; n += 1) {
    const dx = radius * 1.4 * Math.cos((n * Math.PI) / 8), dy = radius * Math.sin((n * Math.PI) / 8);
    AROUND.push([dx, dy, dx > 1 ? "start" : dx < -1 ? "end" : "middle"]);
  }
}

// Labels points where there is room, those on the path first.
function labelPoints(groups, figure, marks, places, path, corners, area, noteOf) {
  const taken = places.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
  for (let n = 1; n < corners.length; n += 1) {
    const [a, b] = [corners[n - 1], corners[n]];
    // A slope has no box of its own; labels may cross it.
    if (Math.abs(a[0] - b[0]) < 1 || Math.abs(a[1] - b[1]) < 1) taken.push([Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]) + 1, Math.max(a[1], b[1]) + 1]);
  }
  const isFree = (box) => box[0] >= area.left && box[2] <= area.right && box[1] >= 16 && box[3] <= area.bottom && !taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]);
  const onPath = marks.map(([, a, b]) => path.some(([x, y]) => x === a && y === b));
  const order = marks.map((_, n) => n).filter((n) => !figure.joined || lastOf(marks, marks[n][0]) === n);
  for (const n of order.sort((a, b) => onPath[b] - onPath[a]).slice(0, MOST_LABELS)) {
    const form = figure.forms[marks[n][0]], [x, y] = places[n], group = groups.get(marks[n][0]);
    const note = noteOf(marks[n][2]), most = (area.right - area.left) * WIDEST_POINT;
    const text = shortened(form.label, most - widthOf(note)) + note, size = widthOf(text) + 4;
    for (const [dx, dy, anchor] of AROUND) {
      const start = x + dx - { start: 0, middle: size / 2, end: size }[anchor];
      const box = [start, y + dy - LABEL + 2, start + size, y + dy + 3];
      if (!isFree(box)) continue;
      taken.push(box);
      if (Math.hypot(dx, dy) > 25) append(group, "path", { d: pathOf([[x, y], [x + dx * 0.94, y + dy - 4]]), class: "leader" });
      append(append(group, "text", { x: x + dx, y: y + dy, class: "label", "text-anchor": anchor }, text), "title", {}, form.name);
      break;
    }
  }
}

const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip", hidden: true }));

function showTip(table, number, event) {
  const rows = table.columns.slice(1).map((column, n) => [column, table.text(number, n + 1)]).filter(([, text]) => text);
  const title = Object.assign(document.createElement("b"), { textContent: table.text(number, 0) });
  tip.replaceChildren(title, ...rows.map(([column, text]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("span"), { textContent: column }), ` ${text}`);
    return row;
  }));
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const above = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, above ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18)}px`;
}

// Draws a figure into a box, with the forms that `passes` lets through; returns whether there are any.
function draw(box, number, passes) {
  const figure = DATA.figures[number], table = tableOf(number);
  const shown = figure.marks.map((values, n) => [values, n]).filter(([values]) => passes(figure.forms[values[0]]));
  if (!shown.length) return false;
  const marks = shown.map(([values]) => values), width = box.clientWidth;
  const svg = append(document.createDocumentFragment(), "svg", { role: "img", class: "chart", "aria-label": figure.description });
  const { height, places } = (figure.kind === "dots" ? drawDots : drawPlane)(svg, figure, marks, width);
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
  const groups = [...svg.querySelectorAll(".form")], forms = [...new Set(marks.map(([form]) => form))];
  const leave = () => {
    tip.hidden = true;
    svg.classList.remove("chosen");
  };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const { left, top } = svg.getBoundingClientRect();
    const distances = places.map(([x, y]) => Math.hypot(x - event.clientX + left, y - event.clientY + top));
    const nearest = distances.indexOf(Math.min(...distances));
    if (distances[nearest] > NEAR) return leave();
    svg.classList.add("chosen");
    groups.forEach((group, n) => group.classList.toggle("on", forms[n] === marks[nearest][0]));
    return showTip(table, shown[nearest][1], event);
  });
  box.replaceChildren(svg);
  return true;
}
