// What the pages need beside htmx: preferences that apply at once, and a note when the event stream is lost.
"use strict";

document.addEventListener("change", (event) => {
  const form = event.target.closest(".preferences");
  if (form) form.submit();
});

document.addEventListener("htmx:sseOpen", () => show(""));
document.addEventListener("htmx:sseError", () => show(connection().dataset.lost));

function connection() {
  return document.getElementById("connection");
}

function show(text) {
  connection().textContent = text;
}

document.documentElement.classList.add("scripted");
