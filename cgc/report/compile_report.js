"use strict";
// Sorts, filters and links table and floorplan. The page is complete without it.
(() => {
  const table = document.getElementById("kernels");
  const body = table.tBodies[0];
  const rows = [...body.querySelectorAll("tr[data-kernel]")];
  const details = document.querySelector(".details");
  const parts = new Map(rows.map((row) => [row.dataset.kernel, [row]]));
  const streams = new Map(rows.map((row) => [row.dataset.kernel, []]));
  for (const part of document.querySelectorAll("svg [data-kernel]")) parts.get(part.dataset.kernel).push(part);
  const arrows = [...document.querySelectorAll("svg [data-from]")];
  for (const arrow of arrows) {
    streams.get(arrow.dataset.from).push(arrow);
    streams.get(arrow.dataset.to).push(arrow);
  }

  // Highlighting: a kernel under the pointer, or the one that was clicked.
  let shown;
  let pinned = null;

  function mark(kernel, on) {
    for (const part of [...parts.get(kernel), ...streams.get(kernel)]) part.classList.toggle("hot", on);
  }

  // An outline above all neighbours, and a ring around what is too small to see.
  function outline(kernel) {
    for (const plan of document.querySelectorAll("svg.plan")) {
      const box = kernel && plan.querySelector(`g[data-kernel="${kernel}"]`).getBBox();
      const tiny = box && Math.max(box.width, box.height) < 24;
      const frame = plan.querySelector(".pointer");
      for (const name of ["x", "y", "width", "height"]) frame.setAttribute(name, box ? box[name] : 0);
      const circle = plan.querySelector(".ring");
      circle.setAttribute("r", tiny ? 16 : 0);
      circle.setAttribute("cx", tiny ? box.x + box.width / 2 : 0);
      circle.setAttribute("cy", tiny ? box.y + box.height / 2 : 0);
    }
  }

  function show(kernel) {
    if (kernel === shown) return;
    if (shown) mark(shown, false);
    if (kernel !== null) mark(kernel, true);
    shown = kernel;
    outline(kernel);
    const name = kernel === null ? "" : document.querySelector(`#kernel-${kernel} > title`).textContent;
    details.textContent = name || "Point at a kernel in the floorplan or the table to find it in the other.";
  }

  function kernelAt(event) {
    const part = event.target.closest("[data-kernel]");
    return part ? part.dataset.kernel : null;
  }

  for (const area of [...document.querySelectorAll("svg.plan"), body]) {
    area.addEventListener("pointerover", (event) => show(kernelAt(event) ?? pinned));
    area.addEventListener("pointerleave", () => show(pinned));
    area.addEventListener("click", (event) => {
      const kernel = kernelAt(event);
      if (event.target.closest("a")) event.preventDefault();
      if (pinned !== null) parts.get(pinned).forEach((part) => part.classList.remove("pinned"));
      pinned = kernel === pinned ? null : kernel;
      if (pinned !== null) parts.get(pinned).forEach((part) => part.classList.add("pinned"));
      show(pinned);
      if (pinned === null) return;
      const other = area === body ? document.querySelector(".floorplan") : parts.get(pinned)[0];
      other.scrollIntoView({ block: area === body ? "start" : "center", behavior: "smooth" });
    });
  }
  body.addEventListener("focusin", (event) => show(kernelAt(event)));
  body.addEventListener("focusout", () => show(pinned));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || pinned === null) return;
    parts.get(pinned).forEach((part) => part.classList.remove("pinned"));
    pinned = null;
    show(null);
  });
  show(null);

  // Sorting: one click ascending, the next descending; equal rows keep the data-flow order.
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const number = header.classList.contains("number");
      const key = (row) => {
        const cell = row.cells[column];
        return number ? Number(cell.dataset.value) : cell.textContent;
      };
      const compare = number ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
      const keyed = rows.map((row) => [key(row), row]);
      keyed.sort((a, b) => (descending ? compare(b[0], a[0]) : compare(a[0], b[0])));
      body.prepend(...keyed.map((pair) => pair[1]));
    });
  });

  // Filtering: rows that have every word stay, the rest of the floorplan fades.
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");
  const texts = rows.map((row) => `${row.textContent} ${row.dataset.ops}`.toLowerCase());

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = new Set();
    rows.forEach((row, index) => {
      const keep = words.every((word) => texts[index].includes(word));
      row.hidden = !keep;
      if (keep) kept.add(row.dataset.kernel);
      for (const part of parts.get(row.dataset.kernel)) part.classList.toggle("faded", !keep);
    });
    for (const arrow of arrows) {
      arrow.classList.toggle("faded", !kept.has(arrow.dataset.from) || !kept.has(arrow.dataset.to));
    }
    body.querySelector(".nothing").hidden = kept.size > 0;
    count.textContent = words.length ? `${kept.size} of ${rows.length}` : "";
  }

  filter.addEventListener("input", apply);
  filter.closest(".filter").hidden = false;
  apply();
})();
