// Keys for who does not want to reach for the mouse. Every page works without them.
//
// What a page says about itself, as attributes:
//   data-row on a row of a list or table: j and k go from one to the next, to its link of the same column.
//   data-cell on a link in a row: h and l go from one to the next. A row without one has its first link.
//   data-key="n" on a link, a button or a field: n follows the link, presses the button, or goes to the field. It comes before the keys above.
//   data-shows="id" on a button: it opens the dialog with this id.
"use strict";

(() => {
  const typing = (target) =>
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(?:input|textarea|select|option)$/i.test(target.tagName));

  const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => stopsOf(row).length > 0);

  const stopsOf = (row) => {
    const cells = [...row.querySelectorAll("[data-cell]")];
    return cells.length > 0 ? cells : [...row.querySelectorAll("a[href], summary")].slice(0, 1);
  };

  const rowOf = (target) => (target instanceof Element ? target.closest("[data-row]") : null);

  const go = (stop) => {
    stop.focus({ preventScroll: true });
    stop.scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  // The row that a reader who has not gone anywhere yet has before them.
  const firstSeen = (all) => all.find((row) => row.getBoundingClientRect().bottom > 0) ?? all[0];

  const toRow = (by) => {
    const all = rows();
    if (all.length === 0) return false;
    const at = rowOf(document.activeElement);
    const place = at === null ? -1 : all.indexOf(at);
    if (place < 0) {
      go(stopsOf(firstSeen(all))[0]);
      return true;
    }
    const next = all[place + by];
    if (next === undefined) return true;
    const column = Math.max(0, stopsOf(at).indexOf(document.activeElement));
    const stops = stopsOf(next);
    go(stops[Math.min(column, stops.length - 1)]);
    return true;
  };

  const toCell = (by) => {
    const at = rowOf(document.activeElement);
    if (at === null) return false;
    const stops = stopsOf(at);
    const next = stops[stops.indexOf(document.activeElement) + by];
    if (next !== undefined) go(next);
    return true;
  };

  const follow = (key) => {
    const found = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (found === null) return false;
    if (found instanceof HTMLAnchorElement || found instanceof HTMLButtonElement) found.click();
    else {
      found.focus();
      if (found instanceof HTMLInputElement) found.select();
    }
    return true;
  };

  const show = (id) => {
    const dialog = document.getElementById(id);
    if (!(dialog instanceof HTMLDialogElement)) return false;
    if (dialog.open) dialog.close();
    else dialog.showModal();
    return true;
  };

  const done = (key) => {
    if (key === "?") return show("keys");
    if (follow(key)) return true;
    switch (key) {
      case "j": return toRow(1);
      case "k": return toRow(-1);
      case "l": return toCell(1);
      case "h": return toCell(-1);
      default: return false;
    }
  };

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (typing(event.target)) {
      if (event.key === "Escape" && document.querySelector("dialog[open]") === null) event.target.blur();
      return;
    }
    if (event.key.length !== 1) return;
    if (event.key !== "?" && document.querySelector("dialog[open]") !== null) return;
    if (done(event.key)) event.preventDefault();
  });

  for (const button of document.querySelectorAll("[data-shows]")) {
    button.hidden = false;
    button.addEventListener("click", () => show(button.dataset.shows));
  }
})();
