// The page of an episode: fold and expand, the rest of a long run and of a long text, links to an event, the test case.
// Without this every one of them is a link.
"use strict";

(() => {
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  const fetched = async (url) => {
    const answer = await fetch(url, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(`the explorer answered ${answer.status}`);
    return parse(await answer.text());
  };

  const failed = (link, error) => {
    link.textContent = `${link.textContent.replace(/ \(.*/, "")} (${error.message}; press to try again)`;
  };

  const conversation = document.getElementById("conversation");

  // Expand all, fold all.
  const fold = document.querySelector("[data-fold]");
  if (fold !== null && conversation !== null) {
    fold.hidden = false;
    fold.addEventListener("click", () => {
      const open = fold.dataset.fold === "open";
      for (const details of conversation.querySelectorAll("details")) details.open = open;
      fold.dataset.fold = open ? "close" : "open";
      fold.textContent = open ? "Fold all" : "Expand all";
    });
  }

  // The rest of a long run, when it comes near.
  let loading = false;
  const more = async (link) => {
    if (loading) return;
    loading = true;
    const place = link.closest("#more");
    try {
      const page = await fetched(link.href);
      const open = fold !== null && fold.dataset.fold === "close";
      for (const item of [...page.querySelectorAll("#conversation > li[id]")]) {
        if (document.getElementById(item.id) !== null) continue;
        if (open) for (const details of item.querySelectorAll("details")) details.open = true;
        conversation.append(document.adoptNode(item));
      }
      conversation.classList.add("is-long");
      conversation.dataset.tail = page.getElementById("conversation").dataset.tail;
      const next = page.getElementById("more");
      if (next === null) place.remove();
      else place.replaceWith(document.adoptNode(next));
      watch();
    } catch (error) {
      failed(link, error);
      link.addEventListener("click", (event) => { event.preventDefault(); more(link); }, { once: true });
    } finally {
      loading = false;
    }
  };

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      more(entry.target);
    }
  }, { rootMargin: "1200px 0px" });

  const watch = () => {
    const link = document.querySelector("#more a[data-next]");
    if (link !== null && conversation !== null) near.observe(link);
  };
  watch();
  document.addEventListener("agent-env:grown", watch);

  // The rest of a long text, a piece at each press.
  document.addEventListener("click", async (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[data-rest]") : null;
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const place = link.closest(".more");
    const text = place.previousElementSibling;
    if (!(text instanceof HTMLPreElement)) return;
    event.preventDefault();
    if (link.dataset.busy !== undefined) return;
    link.dataset.busy = "";
    try {
      const page = await fetched(link.href);
      if (text.lastChild !== null && text.dataset.grown === undefined) text.lastChild.data = text.lastChild.data.replace(/…$/, "");
      text.dataset.grown = "";
      text.append(page.querySelector("[data-piece]").textContent);
      const next = page.querySelector(".piece a[data-rest]");
      if (next === null) place.remove();
      else {
        link.href = next.href;
        link.textContent = next.textContent;
      }
    } catch (error) {
      failed(link, error);
    } finally {
      delete link.dataset.busy;
    }
  });

  // Links to an event: one that is here is shown, without another page.
  const show = (id) => {
    const item = document.getElementById(id);
    if (item === null) return false;
    for (const details of item.querySelectorAll("details.call")) details.open = true;
    item.scrollIntoView({ block: "start" });
    return true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href*='#e']") : null;
    if (link === null || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const url = new URL(link.href);
    if (conversation === null || url.pathname !== location.pathname || !show(url.hash.slice(1))) return;
    event.preventDefault();
    history.replaceState(history.state, "", url);
    for (const item of conversation.querySelectorAll(".is-at")) item.classList.remove("is-at");
    document.getElementById(url.hash.slice(1)).classList.add("is-at");
  });
  const wanted = /^#e(\d{1,15})$/.exec(location.hash);
  if (wanted !== null && conversation !== null && !show(location.hash.slice(1))) {
    const url = new URL(location.href);
    if (url.searchParams.get("at") !== wanted[1]) {
      url.searchParams.delete("from");
      url.searchParams.set("at", wanted[1]);
      location.replace(url);
    }
  }

  // The test case: onto the clipboard, or to be copied by hand where a page may not write to it.
  const copy = document.querySelector("a[data-copy]");
  const dialog = document.getElementById("copied");
  if (copy !== null && dialog !== null) {
    copy.addEventListener("click", async (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const said = copy.textContent;
      try {
        const answer = await fetch(copy.href);
        if (!answer.ok) throw new Error(`the explorer answered ${answer.status}`);
        const script = await answer.text();
        try {
          await navigator.clipboard.writeText(script);
          copy.textContent = "Copied";
          setTimeout(() => { copy.textContent = said; }, 2000);
        } catch {
          const area = dialog.querySelector("textarea");
          area.value = script;
          dialog.showModal();
          area.focus();
          area.select();
        }
      } catch {
        location.assign(copy.href);
      }
    });
  }
})();
