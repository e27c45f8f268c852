// Keeps a page fresh, follows Airflow's light and dark, and opens links to Airflow outside of the frame.
"use strict";
(() => {
  const root = document.documentElement;

  // Airflow shows a page inside a frame of the same origin; its own <html> has the class "dark" or "light".
  const airflow = () => {
    try {
      return window.parent !== window && window.parent.document ? window.parent.document : null;
    } catch {
      return null; // a foreign page shows us; the server forbids that, and so does this
    }
  };
  const followTheme = () => {
    const parent = airflow();
    const theme = parent ? (parent.documentElement.classList.contains("dark") ? "dark" : "light") : localStorage.getItem("theme");
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  };
  followTheme();

  // A link of a frame cannot leave its sandbox, so Airflow's own document follows it.
  const openInAirflow = (event) => {
    const link = event.target.closest("a[data-airflow]");
    const parent = airflow();
    if (!link || !parent || event.button !== 0 || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const outer = parent.createElement("a");
    outer.href = link.href;
    parent.body.append(outer);
    outer.click();
    outer.remove();
  };

  // Also without HTTPS, where a browser offers a page no clipboard to write to.
  const copy = ({ target }) => {
    const source = document.getElementById(target.closest("button[data-copy]")?.dataset.copy);
    if (!source) return;
    getSelection().selectAllChildren(source);
    target.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  };

  const start = () => {
    const main = document.querySelector("main");
    const fresh = document.getElementById("fresh");
    const every = Number(main.dataset.refresh) * 1000;
    const parent = airflow();
    if (parent) new MutationObserver(followTheme).observe(parent.documentElement, { attributeFilter: ["class"] });
    document.addEventListener("click", openInAirflow);
    document.addEventListener("click", copy);
    if (!every) return;

    let updated = Date.now();
    let timer = 0;
    let asked = 0;
    let failures = 0;

    const show = (problem) => {
      if (!fresh) return;
      const seconds = Math.round((Date.now() - updated) / 1000);
      fresh.classList.toggle("late", Boolean(problem));
      const text = problem ? `not updated for ${seconds} s: ${problem}` : "updated just now";
      if (fresh.textContent !== text) fresh.textContent = text;
    };

    const replace = (text) => {
      const next = new DOMParser().parseFromString(text, "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const now = next.getElementById(old.id);
        if (!now || now.innerHTML === old.innerHTML) continue;
        const open = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
        const scrolled = [...old.querySelectorAll(".wide, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
        const nameOf = (one) => one.getAttribute("href") ?? one.id;
        const focus = old.contains(document.activeElement) ? nameOf(document.activeElement) : null;
        old.replaceChildren(...now.childNodes);
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        const boxes = [...old.querySelectorAll(".wide, pre")];
        if (boxes.length === scrolled.length) boxes.forEach((one, index) => one.scrollTo(...scrolled[index]));
        if (focus) [...old.querySelectorAll("a, button[id]")].find((one) => nameOf(one) === focus)?.focus({ preventScroll: true });
      }
    };

    const refresh = async () => {
      clearTimeout(timer);
      const mine = ++asked;
      try {
        const answer = await fetch(location.href, { headers: { "X-Sluice-Refresh": "1" }, cache: "no-store" });
        if (mine !== asked) return;
        if (answer.status === 401) return location.reload();
        if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
        if ("reload" in main.dataset) return location.reload();
        replace(await answer.text());
        [updated, failures] = [Date.now(), 0];
        show("");
      } catch (error) {
        if (mine !== asked) return;
        failures += 1;
        show(error instanceof TypeError ? "the server does not answer" : error.message);
      }
      timer = setTimeout(() => (document.hidden ? undefined : refresh()), every * Math.min(2 ** failures, 12));
    };

    show("");
    timer = setTimeout(refresh, every);
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));

    // A drawing that is larger than its frame begins with what is chosen.
    let centred = "";
    const centre = () => {
      const frame = document.querySelector(".whole");
      const chosen = frame?.querySelector(".graph .self");
      const name = chosen?.querySelector("title").textContent.split(",")[0] ?? "";
      if (chosen && name !== centred) {
        const [box, outer] = [chosen.getBoundingClientRect(), frame.getBoundingClientRect()];
        frame.scrollBy(box.x + box.width / 2 - outer.x - outer.width / 2, box.y + box.height / 2 - outer.y - outer.height / 2);
      }
      centred = name;
    };
    centre();

    const search = document.getElementById("q");
    if (search) {
      const changed = new Map();
      let typed = 0;
      search.form.addEventListener("submit", (event) => event.preventDefault());
      search.form.addEventListener("input", ({ target }) => {
        clearTimeout(typed);
        changed.set(target.name, target.type === "checkbox" && !target.checked ? "" : target.value);
        typed = setTimeout(() => {
          const address = new URL(location.href);
          for (const [name, value] of changed) address.searchParams.set(name, value);
          changed.clear();
          history.replaceState(null, "", address);
          refresh().then(centre);
        }, 150);
      });
    }
  };
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", start) : start();
})();
