// Writes observations of a report to its title. The page has rows of several frameworks and one machine.
"use strict";
{
  const query = (selector) => [...document.querySelectorAll(selector)];
  const texts = (table, column) => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[column].textContent);
  const bottom = (part) => part.getBoundingClientRect().bottom + scrollY;
  const enter = (input, value) => { input.value = value; input.dispatchEvent(new Event("input", { bubbles: true })); };
  const isWide = () => document.documentElement.scrollWidth > document.documentElement.clientWidth;
  const first = query("#overview table")[0], found = {};
  found.answer = Math.max(...query("#overview, #speed .figures").map(bottom));
  found.height = document.documentElement.scrollHeight;
  found.wide = isWide();
  found.charts = query("#speed .plot svg, #quality .plot svg").length;
  found.foldedBefore = query("#memory .plot svg").length;
  const overlapping = (svg) => {
    const boxes = [...svg.querySelectorAll(".label, .tick")].map((text) => text.getBoundingClientRect());
    return boxes.some((a, n) => boxes.some((b, m) => m > n && a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
  };
  found.narrowest = Math.min(...query("#overview tbody th, #overview td").map((cell) => cell.getBoundingClientRect().width).filter((width) => width > 0));

  first.tHead.rows[0].cells[2].querySelector("button").click();
  found.speeds = [...first.tBodies[0].rows].map((row) => Number(row.cells[2].dataset.order || Number.MAX_VALUE));

  for (const details of query("details")) details.open = true;
  update();
  const svgs = query(".plot svg");
  found.foldedAfter = query("#memory .plot svg").length;
  found.overlapping = svgs.filter(overlapping).map((svg) => svg.getAttribute("aria-label"));
  found.ticks = Math.min(...svgs.map((svg) => svg.querySelectorAll(".tick").length));
  found.outside = svgs.filter((svg) => [...svg.querySelectorAll("text")].some((text) => text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1)).length;
  found.openWide = isWide();

  const mark = query("#speed .plot svg .form use")[0].getBoundingClientRect();
  const chart = query("#speed .plot svg")[0];
  chart.dispatchEvent(new PointerEvent("pointermove", { clientX: mark.x + mark.width / 2, clientY: mark.y + mark.height / 2 }));
  found.tip = document.getElementById("tip").innerText;
  chart.dispatchEvent(new PointerEvent("pointerleave"));

  const table = query("#tables table")[0];
  const heading = table.tHead.rows[0].cells[2].querySelector("button");
  heading.click();
  found.rising = texts(table, 2);
  heading.click();
  found.falling = texts(table, 2);
  found.sort = table.tHead.rows[0].cells[2].getAttribute("aria-sort");
  found.all = [...table.tBodies[0].rows].map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`);
  enter(query("#tables input")[0], "SOHSM jax");
  found.fitting = [...table.tBodies[0].rows].map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`);
  enter(query("#tables input")[0], "");

  const jax = query("[name=framework][value=jax]")[0];
  jax.checked = false;
  jax.dispatchEvent(new Event("input", { bubbles: true }));
  enter(query("[name=method]")[0], "huff");
  found.methods = [...new Set([...first.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.dataset.name))];
  found.frameworks = [...new Set(texts(first, 1))];
  found.inTable = [...new Set([...table.tBodies[0].rows].map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`))];
  found.inCharts = [...new Set(query("figure:not([hidden]) .plot .label title").map((title) => title.textContent))];
  found.shownCharts = query("#speed figure:not([hidden])").length;
  document.title = JSON.stringify(found);
}
