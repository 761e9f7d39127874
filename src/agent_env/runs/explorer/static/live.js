// A page that is told when what it shows has changed, fetches itself again, and takes over what is new.
//
// What a page says about itself, as attributes:
//   data-live="name" on an element: it is brought up to date. Elements in it are matched by id, else by their place.
//   data-growing on #conversation, with data-tail: what comes after the event data-tail is added at its end.
// What a reader has open, selected, typed or scrolled to stays as it is.
"use strict";

(() => {
  const { page, seen: first } = document.currentScript.dataset;
  const SLOWEST_MS = 30000;
  let seen = first;
  let source = null;
  let wait = 1000;
  let timer = 0;
  let pending = false;
  let busy = false;

  // One line in the corner, for what a reader has to know.
  const say = (text) => {
    let line = document.getElementById("live-status");
    if (line === null) {
      if (text === "") return;
      line = document.createElement("p");
      line.id = "live-status";
      line.className = "status";
      line.setAttribute("role", "status");
      document.body.append(line);
    }
    if (line.textContent !== text) line.textContent = text;
    line.hidden = text === "";
  };

  // Make `old` say what `fresh` says, touching nothing that says it already.
  const same = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");

  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    const kept = old.nodeName === "DETAILS" || old.nodeName === "DIALOG" ? new Set(["open"]) : new Set();
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept.has(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    // What someone is filling in stays.
    if (/^(?:FORM|SELECT|INPUT|TEXTAREA)$/.test(old.nodeName) && old.contains(document.activeElement)) return;
    children(old, fresh);
  };

  const children = (old, fresh) => {
    const named = new Map();
    for (const child of old.children) if (child.id) named.set(child.id, child);
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const match = wanted.id && named.has(wanted.id) ? named.get(wanted.id) : at !== null && same(at, wanted) ? at : null;
      if (match === null) {
        old.insertBefore(document.importNode(wanted, true), at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      morph(match, wanted);
    }
    while (at !== null) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  };

  const grown = (conversation, fresh) => {
    const from = Number(conversation.dataset.tail);
    const wanted = new Set([...fresh.children].map((item) => item.id));
    for (const item of [...conversation.children]) {
      if (!item.id || (Number(item.id.slice(1)) >= from && !wanted.has(item.id))) item.remove();
    }
    for (const item of [...fresh.children]) {
      const old = item.id ? document.getElementById(item.id) : null;
      if (old !== null) morph(old, item);
      else conversation.append(document.importNode(item, true));
    }
    conversation.dataset.tail = fresh.dataset.tail;
    if (!("growing" in fresh.dataset)) delete conversation.dataset.growing;
    const more = fresh.ownerDocument.getElementById("more");
    if (more !== null) conversation.after(document.importNode(more, true));
    document.dispatchEvent(new Event("agent-env:grown"));
  };

  const named = (page) => new Map([...page.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part]));

  const parts = (fresh) => {
    const here = named(document);
    const there = named(fresh);
    const isSame = here.size === there.size && [...there.keys()].every((name) => here.has(name));
    if (!isSame && document.getElementById("conversation") === null) {
      // A part has come or gone, and with it what stands in its place while it is not there.
      morph(document.querySelector("main"), fresh.querySelector("main"));
      return;
    }
    let last = null;
    for (const [name, part] of there) {
      const old = here.get(name);
      if (old !== undefined) {
        morph(old, part);
        last = old;
      } else if (last !== null) {
        last.after(document.importNode(part, true));
        last = last.nextElementSibling;
      }
    }
  };

  const refresh = async () => {
    const conversation = document.querySelector("#conversation[data-growing]");
    const grows = conversation !== null && document.getElementById("more") === null;
    const url = new URL(location.href);
    url.hash = "";
    if (grows) {
      url.searchParams.delete("at");
      url.searchParams.set("from", conversation.dataset.tail);
    }
    const answer = await fetch(url, { headers: { accept: "text/html" }, cache: "no-store" });
    if (answer.status === 404) throw new Error("What this page shows is there no more.");
    if (!answer.ok) throw new Error(`The explorer cannot show this now (${answer.status}).`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A radio button that comes new and chosen would take the choice from the one that was chosen here.
    const chosen = document.querySelectorAll("input:checked");
    parts(fresh);
    for (const input of chosen) input.checked = true;
    const list = fresh.getElementById("conversation");
    if (grows && list !== null) grown(conversation, list);
    document.title = fresh.title;
  };

  const changed = async () => {
    if (busy) {
      pending = true;
      return;
    }
    busy = true;
    const began = performance.now();
    try {
      await refresh();
      say("");
    } catch (error) {
      say(error instanceof TypeError ? "The explorer does not answer." : error.message);
    }
    // A page that takes long to make is not made all the time.
    const pause = Math.min(SLOWEST_MS, Math.max(500, 4 * (performance.now() - began)));
    setTimeout(() => {
      busy = false;
      if (pending) {
        pending = false;
        changed();
      }
    }, pause);
  };

  const open = () => {
    if (source !== null || document.hidden) return;
    clearTimeout(timer);
    source = new EventSource(`/live?${new URLSearchParams({ page, seen })}`);
    source.addEventListener("open", () => {
      wait = 1000;
      if (!busy) say("");
    });
    source.addEventListener("changed", (event) => {
      seen = event.data;
      changed();
    });
    source.addEventListener("error", () => {
      say("Not connected: the explorer does not answer.");
      if (source === null || source.readyState !== EventSource.CLOSED) return;
      // Refused: the browser does not try again by itself.
      close();
      wait = Math.min(SLOWEST_MS, 2 * wait);
      timer = setTimeout(open, wait);
    });
  };

  const close = () => {
    clearTimeout(timer);
    if (source !== null) source.close();
    source = null;
  };

  // A browser has few connections for one site: a page that nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
})();
