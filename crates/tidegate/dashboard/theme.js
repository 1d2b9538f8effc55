// Light or dark, before the first paint: what was chosen here, or what the system prefers.
"use strict";

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("theme");
} catch {
  // Whoever forbids storage chooses anew each time.
}

function applyTheme() {
  const known = chosenTheme === "light" || chosenTheme === "dark";
  document.documentElement.dataset.theme = known ? chosenTheme : prefersDark.matches ? "dark" : "light";
}

applyTheme();
