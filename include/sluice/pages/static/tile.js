// A tile on Airflow's home page: how many streams are unhealthy. Airflow calls it as a React component.
"use strict";
globalThis["Sluice streams"] = function SluiceStreamsTile() {
  const React = globalThis.React;
  const [seen, setSeen] = React.useState(null);
  React.useEffect(() => {
    let timer = 0;
    let ended = false;
    const look = async () => {
      try {
        const answer = await fetch(new URL("sluice/api/unhealthy", document.baseURI), { cache: "no-store" });
        if (!ended) setSeen(answer.ok ? await answer.json() : { problem: `Sluice answers ${answer.status}` });
      } catch {
        if (!ended) setSeen({ problem: "Sluice does not answer" });
      }
      if (!ended) timer = setTimeout(look, document.hidden ? 60000 : 15000);
    };
    look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, []);
  const element = React.createElement;
  const dark = document.documentElement.classList.contains("dark");
  const count = seen && seen.unhealthy ? seen.unhealthy.length : 0;
  const colour = count || (seen && seen.problem) ? (dark ? "#ff8a80" : "#b3161b") : dark ? "#57c878" : "#12703a";
  const words = !seen
    ? "Streams …"
    : seen.problem
      ? `▲ ${seen.problem}`
      : count
        ? `● ${count} of ${seen.total} streams unhealthy`
        : `✓ ${seen.total} streams healthy`;
  const names = count ? seen.unhealthy.slice(0, 5).map((line) => `${line.stream}: ${line.state}`).join(" · ") : "";
  return element(
    "a",
    {
      id: "sluice-tile",
      href: new URL(`plugin/streams/sluice/streams${count ? "?show=unhealthy" : ""}`, document.baseURI).href,
      style: { display: "flex", gap: "12px", alignItems: "baseline", flexWrap: "wrap", padding: "10px 14px", border: `1px solid ${dark ? "#3f3f46" : "#d4d4d8"}`, borderRadius: "8px" },
    },
    element("strong", { style: { color: colour } }, words),
    names ? element("span", { style: { opacity: 0.8 } }, names + (count > 5 ? ` and ${count - 5} more` : "")) : null,
  );
};
