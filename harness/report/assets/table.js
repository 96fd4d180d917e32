// Builds long tables from the values in the data of the page when they are opened; sorts a table by a column when its
// heading is pressed, and shows only the lines that contain all words of the filter.

const AT_ONCE = 300; // lines of a table, until all are asked for

// Factors of units, so that 9.1 ms comes before 1.2 s and 88 MiB before 1.1 GiB.
const SCALES = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, KiB: 1024, MiB: 1048576, GiB: 1073741824, "%": 0.01 };

function valueOf(text) {
  const match = text.match(/^\s*(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([^\s\d[]*)/i);
  if (!match) return null;
  const scale = SCALES[match[2]];
  return Number(match[1].replaceAll(",", "")) * (scale === undefined ? 1 : scale);
}

function compare(first, second) {
  const a = valueOf(first), b = valueOf(second);
  if (a !== null && b !== null) return a - b;
  // Numbers come before words, and words before empty cells.
  if (!first.trim() !== !second.trim()) return first.trim() ? -1 : 1;
  if ((a === null) !== (b === null)) return a === null ? 1 : -1;
  return first.localeCompare(second);
}

// Returns the table with this number, with a function that returns the text of a line in a column.
function tableOf(number) {
  const { columns, values } = DATA.tables[number];
  const text = (line, column) => {
    const packed = values[column];
    return Array.isArray(packed) ? packed[line] : packed.texts[packed.at[line]];
  };
  const first = values[0] || [];
  return { columns, text, count: (Array.isArray(first) ? first : first.at).length };
}

function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function node(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Sorts by a heading when its button is pressed: `sort` is called with the column and whether it decreases.
function sortable(headings, sort) {
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(column, down);
    });
  });
}

// Fills a block with a table, and returns the function that shows it anew under the filter of the page.
function fill(block, number, passes) {
  const table = tableOf(number), name = `table${number}`;
  const lines = Array.from({ length: table.count }, (_, n) => n);
  const [method, framework] = ["method", "framework"].map((column) => table.columns.indexOf(column));
  const isNumeric = table.columns.map((_, column) => column > 0 && lines.slice(0, 50).some((n) => /^([+-]?\d|A\/A)/.test(table.text(n, column))));
  const input = node("input", { id: `${name}-filter`, type: "search", autocomplete: "off", placeholder: "all of these words" });
  const status = node("span", { role: "status" });
  const headings = table.columns.map((column) => node("th", { scope: "col", "aria-sort": "none" }, node("button", { type: "button" }, column)));
  const body = node("tbody", {}), more = node("button", { type: "button", class: "more" });
  const caption = node("caption", { id: `${name}-caption`, class: "unseen" }, block.dataset.caption);
  if (table.count > 8) block.append(node("p", { class: "filter" }, node("label", { for: input.id }, "Show rows with "), input, " ", status));
  block.append(node("div", { class: "scroll", role: "region", tabindex: 0, "aria-labelledby": caption.id }, node("table", { id: name }, caption, node("thead", {}, node("tr", {}, ...headings)), body)), more);
  let most = AT_ONCE;
  const show = () => {
    const words = wordsOf(input.value);
    const fitting = lines.filter((n) => {
      if (method >= 0 && !passes({ name: table.text(n, method), framework: framework < 0 ? null : table.text(n, framework) })) return false;
      const text = words.length ? table.columns.map((_, column) => table.text(n, column)).join(" ").toLowerCase() : "";
      return words.every((word) => text.includes(word));
    });
    body.replaceChildren(...fitting.slice(0, most).map((n) => node("tr", {}, ...table.columns.map((_, column) => node(column ? "td" : "th", column ? (isNumeric[column] ? { class: "n" } : {}) : { scope: "row" }, table.text(n, column))))));
    status.textContent = fitting.length < lines.length ? `${fitting.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} rows` : "";
    more.hidden = fitting.length <= most;
    more.textContent = `Show all ${fitting.length.toLocaleString("en")} rows`;
  };
  more.addEventListener("click", () => {
    most = Infinity;
    show();
  });
  input.addEventListener("input", show);
  sortable(headings, (column, down) => {
    lines.sort((a, b) => (down ? -1 : 1) * compare(table.text(a, column), table.text(b, column)));
    show();
  });
  show();
  return show;
}
