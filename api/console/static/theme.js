// Before anything is drawn: the colours that this viewer has chosen; else those of the system.
"use strict";
(() => {
  const chosen = localStorage.getItem("oncelog-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
