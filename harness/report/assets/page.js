// Filters the page by machine, framework and method, and fills what is opened.

const filters = document.getElementById("filters");
const filled = new Map(); // functions that show opened tables anew

function chosen() {
  const machine = filters.querySelector("[name=machine]:checked");
  return {
    machine: machine && machine.value,
    excluded: new Set([...filters.querySelectorAll("[name=framework]:not(:checked)")].map((box) => box.value)),
    words: wordsOf(filters.elements.method ? filters.elements.method.value : ""),
  };
}

// Returns the test of a form: its framework is not excluded, and its name contains all words.
function test({ excluded, words }) {
  return ({ name, framework }) => !excluded.has(framework) && words.every((word) => name.toLowerCase().includes(word));
}

const isOpen = (part) => !part.closest("details:not([open])");

function update() {
  const choice = chosen(), passes = test(choice);
  for (const part of document.querySelectorAll("[data-machine]")) {
    part.hidden = choice.machine !== null && part.dataset.machine !== choice.machine;
  }
  for (const row of document.querySelectorAll("#overview tbody tr")) row.hidden = !passes(row.dataset);
  for (const figure of document.querySelectorAll("figure:not([hidden])")) {
    const forms = DATA.figures[figure.dataset.number].forms;
    figure.hidden = !forms.some((form) => passes(form));
    if (!figure.hidden && isOpen(figure)) draw(figure.querySelector(".plot"), figure.dataset.number, passes);
  }
  for (const block of document.querySelectorAll("[data-table]")) {
    if (!isOpen(block)) continue;
    if (filled.has(block)) filled.get(block)();
    else filled.set(block, fill(block, Number(block.dataset.table), (form) => test(chosen())(form)));
  }
  for (const folded of document.querySelectorAll("main details.fold")) {
    const parts = [...folded.querySelectorAll("figure, .part")];
    folded.hidden = parts.length > 0 && parts.every((part) => part.hidden);
  }
  for (const section of document.querySelectorAll("main > section")) {
    const parts = [...section.querySelectorAll("figure, .part")];
    section.hidden = parts.length > 0 && parts.every((part) => part.hidden);
    document.querySelector(`nav [href="#${section.id}"]`).parentElement.hidden = section.hidden;
  }
}

filters.hidden = filters.querySelector("input") === null;
filters.addEventListener("input", update);
filters.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("toggle", update, true);

for (const table of document.querySelectorAll("#overview table")) {
  const orderOf = (row, column) => row.cells[column].dataset.order || row.cells[column].textContent;
  sortable([...table.tHead.rows[0].cells], (column, down) => {
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (down ? -1 : 1) * compare(orderOf(a, column), orderOf(b, column)));
    table.tBodies[0].append(...rows);
  });
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.querySelector("details.fold");
  if (folded) folded.open = true;
}
addEventListener("hashchange", openTarget);
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(openTarget));

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) update();
  width = innerWidth;
});
openTarget();
update();
