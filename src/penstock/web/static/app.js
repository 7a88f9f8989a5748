// What the pages need beside htmx: preferences that apply at once, parts that stay open when the page is refreshed, and a
// note when the event stream is lost.
"use strict";

document.addEventListener("change", (event) => {
  const form = event.target.closest(".preferences");
  if (form) form.submit();
});

document.addEventListener("htmx:sseOpen", () => show(""));
document.addEventListener("htmx:sseError", () => show(connection().dataset.lost));

// A refresh comes without knowing what the person opened.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
  !(name === "open" && element.tagName === "DETAILS");

function connection() {
  return document.getElementById("connection");
}

function show(text) {
  connection().textContent = text;
}

// On a phone, the navigation is wider than the window.
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

document.documentElement.classList.add("scripted");
