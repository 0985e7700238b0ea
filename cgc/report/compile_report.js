"use strict";
// Sort, filter and link table and floorplan. The page is complete without this script.
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

  // Highlight the kernel under the pointer, or the one that was clicked.
  let shown;
  let pinned = null;

  function mark(kernel, on) {
    for (const part of [...parts.get(kernel), ...streams.get(kernel)]) part.classList.toggle("hot", on);
  }

  // Draw an outline above all neighbors, and a ring around a kernel that is too small to see.
  function outline(kernel) {
    for (const plan of document.querySelectorAll("svg.plan")) {
      const box = kernel && plan.querySelector(`g[data-kernel="${kernel}"]`).getBBox();
      const pixel = plan.viewBox.baseVal.width / plan.clientWidth;
      const tiny = box && Math.max(box.width, box.height) < 24 * pixel;
      const frame = plan.querySelector(".pointer");
      for (const name of ["x", "y", "width", "height"]) frame.setAttribute(name, box ? box[name] : 0);
      const circle = plan.querySelector(".ring");
      circle.setAttribute("r", tiny ? 16 * pixel : 0);
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
      if (dragged) return;
      const kernel = kernelAt(event);
      if (event.target.closest("a")) event.preventDefault();
      if (pinned !== null) parts.get(pinned).forEach((part) => part.classList.remove("pinned"));
      pinned = kernel === pinned ? null : kernel;
      if (pinned !== null) parts.get(pinned).forEach((part) => part.classList.add("pinned"));
      show(pinned);
      if (pinned === null) return;
      if (area === body) reveal(pinned);
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

  // Zoom: names keep their size on the screen, so more of them fit when the view is enlarged.
  const main = document.querySelector("svg.main");
  const view = main.viewBox.baseVal;
  const whole = { x: 0, y: 0, width: view.width, height: view.height };
  const closest = 60;
  const drawn = main.querySelector(".labels");
  const closer = main.appendChild(drawn.cloneNode(false));
  const tiles = [...main.querySelectorAll("g.kernel")].map((part) => {
    const { x, y, width, height } = part.querySelector("rect").getBBox();
    const shades = [...part.classList].filter((name) => /^[umw]\d$/.test(name));
    return { kernel: part.dataset.kernel, x, y, width, height, shades };
  });
  let dragged = false;

  function textOf(row, selector) {
    return row.querySelector(selector).textContent.trim();
  }

  // Show the names that fit into the visible part of their rectangles, by the rules of the page's own drawing.
  function label() {
    const pixel = view.width / main.clientWidth;
    const own = view.width < whole.width || pixel > 1.15;
    main.style.setProperty("--pixel", pixel);
    for (const head of main.querySelectorAll("marker")) {
      head.setAttribute("markerWidth", 9 * pixel);
      head.setAttribute("markerHeight", 9 * pixel);
    }
    drawn.style.display = own ? "none" : "";
    closer.replaceChildren();
    if (!own) return;
    const [wide, line, gap] = [6.9 * pixel, 14 * pixel, 5 * pixel];
    for (const tile of tiles) {
      const [left, top] = [Math.max(tile.x, view.x), Math.max(tile.y, view.y)];
      const width = Math.min(tile.x + tile.width, view.x + view.width) - left;
      const height = Math.min(tile.y + tile.height, view.y + view.height) - top;
      if (Math.min(width, height) < line || Math.max(width, height) < wide + 2 * gap) continue;
      const row = parts.get(tile.kernel)[0];
      const [number, name] = [textOf(row, "td"), textOf(row, "th a")];
      const text = [`${number} ${name}`, name, number].find((candidate) => {
        const length = candidate.length * wide + 2 * gap;
        return length <= width || (length <= height && candidate !== number);
      });
      if (!text) continue;
      const upright = text.length * wide + 2 * gap > width;
      const element = document.createElementNS(main.namespaceURI, "text");
      element.classList.add(...tile.shades);
      element.dataset.kernel = tile.kernel;
      const at = upright ? [left + width / 2 - 4 * pixel, top + gap] : [left + gap, top + line - pixel];
      element.setAttribute("transform", `translate(${at})${upright ? " rotate(90)" : ""}`);
      element.textContent = text;
      closer.append(element);
    }
  }

  function look(x, y, width) {
    view.width = Math.min(whole.width, Math.max(whole.width / closest, width));
    view.height = (view.width * whole.height) / whole.width;
    view.x = Math.min(whole.width - view.width, Math.max(0, x));
    view.y = Math.min(whole.height - view.height, Math.max(0, y));
    main.classList.toggle("closer", view.width < whole.width);
    label();
    outline(shown);
  }

  // Zoom and keep a point at its place on the screen.
  function zoom(factor, x = view.x + view.width / 2, y = view.y + view.height / 2) {
    const width = Math.min(whole.width, Math.max(whole.width / closest, view.width / factor));
    const change = width / view.width;
    look(x - (x - view.x) * change, y - (y - view.y) * change, width);
  }

  // Show a kernel that is too small to be seen, or outside of the view.
  function reveal(kernel) {
    const { x, y, width, height } = tiles.find((tile) => tile.kernel === kernel);
    const inside = x < view.x + view.width && x + width > view.x && y < view.y + view.height && y + height > view.y;
    if (inside && (Math.min(width, height) * main.clientWidth) / view.width >= 14) return;
    const wanted = 10 * Math.max(width, height);
    look(x + width / 2 - wanted / 2, y + height / 2 - (wanted * whole.height) / whole.width / 2, wanted);
  }

  function pointOf(event) {
    const box = main.getBoundingClientRect();
    const unit = view.width / box.width;
    return [view.x + (event.clientX - box.left) * unit, view.y + (event.clientY - box.top) * unit];
  }

  const steps = { in: () => zoom(2), out: () => zoom(0.5), whole: () => look(0, 0, whole.width) };
  const buttons = document.querySelector(".zoom");
  buttons.hidden = false;
  buttons.addEventListener("click", (event) => steps[event.target.dataset.zoom]?.());
  main.addEventListener("dblclick", (event) => zoom(2, ...pointOf(event)));
  main.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(2 ** (-event.deltaY / 240), ...pointOf(event));
    },
    { passive: false },
  );
  main.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (view.width === whole.width || event.button !== 0) return;
    const [fromX, fromY] = pointOf(event);
    const start = [event.clientX, event.clientY];
    const move = (moved) => {
      if (!dragged && Math.hypot(moved.clientX - start[0], moved.clientY - start[1]) < 4) return;
      dragged = true;
      const [x, y] = pointOf(moved);
      look(view.x + fromX - x, view.y + fromY - y, view.width);
    };
    const end = () => {
      removeEventListener("pointermove", move);
      for (const kind of ["pointerup", "pointercancel"]) removeEventListener(kind, end);
    };
    addEventListener("pointermove", move);
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, end);
  });
  body.addEventListener("pointerdown", () => (dragged = false));
  addEventListener("resize", label);
  label();
  show(null);

  // Sort: the first click ascending, the next descending; equal rows keep the data-flow order.
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

  // Filter: show the rows that match every word, and fade the other kernels of the floorplan.
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
