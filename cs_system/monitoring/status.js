// Replaces the sections of the page that the system reports as changed.
"use strict";

const connection = document.getElementById("connection");

function replace(id, html) {
  const section = document.getElementById(id);
  // A link that has the focus would lose it; the section is replaced by its next change.
  if (section === null || section.contains(document.activeElement)) return;
  section.innerHTML = html;
}

const events = new EventSource("events");

events.addEventListener("sections", (event) => {
  const { title, sections } = JSON.parse(event.data);
  document.title = title;
  for (const [id, html] of Object.entries(sections)) replace(id, html);
  if (connection.textContent !== "live") connection.textContent = "live";
});

// The browser connects again by itself, except after an answer that says not to.
events.addEventListener("error", () => {
  const closed = events.readyState === EventSource.CLOSED;
  connection.textContent = closed ? "not live: too many pages are open; reload later" : "the system does not answer; trying again";
});
