"use strict";
// Sorts a table by a column when its heading is pressed, and shows only the rows that contain all words of the filter.

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

for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (down ? -1 : 1) * compare(a.cells[column].textContent, b.cells[column].textContent));
      table.tBodies[0].append(...rows);
    });
  });
}

for (const block of document.querySelectorAll("[data-filtered]")) {
  const input = block.querySelector("input"), status = block.querySelector("[role=status]");
  const rows = [...block.querySelector("tbody").rows];
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      row.hidden = !fits;
      if (fits) shown += 1;
    }
    status.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
}
