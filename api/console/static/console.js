// Live pages, charts, keys and colours. Nothing is asked while the page is hidden.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const live = document.getElementById("live");
  const offline = document.getElementById("offline");
  const isLive = live.hasAttribute("hx-get");

  // --- refresh --------------------------------------------------------------------------------

  const isSelecting = () => {
    const selection = getSelection();
    return !selection.isCollapsed && live.contains(selection.anchorNode);
  };
  const isTyping = () => live.contains(document.activeElement) &&
    ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);

  const refresh = () => {
    if (document.visibilityState !== "visible") return;
    // What is being read with the mouse or written must not move away.
    if (isLive && !isSelecting() && !isTyping()) htmx.trigger(live, "refresh");
    document.querySelectorAll(".chart").forEach(draw);
  };

  let focused = null;
  document.addEventListener("htmx:beforeSwap", () => {
    const active = document.activeElement;
    focused = live.contains(active) ? active.getAttribute("href") : null;
  });
  document.addEventListener("htmx:afterSwap", () => {
    offline.hidden = true;
    if (focused === null) return;
    const again = [...live.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
    if (again) again.focus({ preventScroll: true });
  });
  document.addEventListener("htmx:sendError", () => { offline.hidden = false; });
  document.addEventListener("htmx:responseError", (event) => {
    // A page that cannot be made now: load it whole, with what is wrong.
    if (event.detail.xhr.status === 401) location.reload();
    else offline.hidden = event.detail.xhr.status < 500;
  });

  // --- charts ---------------------------------------------------------------------------------

  const plots = new WeakMap();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const options = (figure, label) => {
    const axis = { stroke: style("--dim"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font: "11px system-ui" };
    return {
      width: figure.clientWidth || 600,
      height: 130,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, least, most) => [0, Math.max(most || 0, 1) * 1.1] } },
      axes: [
        { ...axis, values: (_, times) => times.map((t) => new Date(t * 1000).toISOString().slice(11, 19)) },
        { ...axis, size: 60, values: (_, values) => values.map((v) => v.toLocaleString("en")) },
      ],
      series: [{}, { label, stroke: style("--accent"), width: 1.5, fill: style("--fill"), points: { size: 4 } }],
    };
  };

  async function draw(figure) {
    let told;
    try {
      const reply = await fetch(figure.dataset.url, { headers: { Accept: "application/json" } });
      if (!reply.ok) return;
      told = await reply.json();
    } catch (error) {
      offline.hidden = false;
      return;
    }
    const known = plots.get(figure);
    if (known) {
      known.setData(told.columns);
    } else {
      const made = new uPlot(options(figure, told.label), told.columns, figure.querySelector(".plot"));
      plots.set(figure, made);
    }
    figure.classList.toggle("waiting", told.columns[0].length < 2);
  }

  const redraw = () => document.querySelectorAll(".chart").forEach((figure) => {
    const known = plots.get(figure);
    if (known) known.destroy();
    plots.delete(figure);
    draw(figure);
  });
  addEventListener("resize", () => document.querySelectorAll(".chart").forEach((figure) => {
    const known = plots.get(figure);
    if (known) known.setSize({ width: figure.clientWidth, height: 130 });
  }));

  // --- colours --------------------------------------------------------------------------------

  const switchTheme = () => {
    const isDark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const next = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("oncelog-theme", next);
    redraw();
  };
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // --- keys -----------------------------------------------------------------------------------

  const help = document.getElementById("help");
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  let isGoing = false;

  const move = (step) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const place = rows.indexOf(document.activeElement);
    rows[Math.min(Math.max(place + step, 0), rows.length - 1)].focus();
  };
  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) location.assign(link.href);
  };
  const keys = {
    "/": () => { const field = document.querySelector("[data-search]"); if (field) field.focus(); },
    "?": () => help.showModal(),
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("[data-next]"),
    p: () => follow("[data-previous]"),
    d: switchTheme,
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") { document.activeElement.blur(); isGoing = false; return; }
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) || help.open) return;
    if (isGoing) {
      isGoing = false;
      const link = [...document.querySelectorAll("nav [data-key]")].find((a) => a.dataset.key === event.key);
      if (link) { event.preventDefault(); location.assign(link.href); }
    } else if (event.key === "g") {
      isGoing = true;
    } else if (Object.hasOwn(keys, event.key)) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  // --- commands -------------------------------------------------------------------------------

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch (error) {
      button.textContent = "not allowed";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  addEventListener("load", () => {
    document.querySelectorAll(".chart").forEach(draw);
    setInterval(refresh, EVERY_MS);
  });
  document.addEventListener("visibilitychange", refresh);
})();
