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
  const place = (path) => new URL(path, document.baseURI).href;
  const pages = "plugin/streams/sluice/";
  const parts = []; // what is wrong, the worst first: its words, the page about it, and the reasons
  if (seen && seen.unhealthy) {
    const { unhealthy, total, failed_checks: failed, paused } = seen;
    if (unhealthy.length) {
      const alone = unhealthy.length === 1 ? `${pages}streams/${encodeURIComponent(unhealthy[0].stream)}` : `${pages}streams?show=unhealthy`;
      parts.push([`● ${unhealthy.length} of ${total} streams unhealthy`, alone, unhealthy.map((line) => [`${line.stream}: ${line.state}`, line.explanation])]);
    }
    if (failed.length) {
      const alone = failed.length === 1 ? `${pages}tables/${encodeURIComponent(failed[0].table)}` : `${pages}tables?show=failed`;
      parts.push([`● ${failed.length} ${failed.length === 1 ? "table fails its" : "tables fail their"} checks`, alone, failed.map((one) => [one.table, one.explanation])]);
    }
    if (paused.length) {
      const alone = paused.length === 1 ? `dags/${paused[0].dag}` : `${pages}streams`;
      parts.push([`▲ ${paused.length} ${paused.length === 1 ? "DAG" : "DAGs"} of the platform paused`, alone, paused.map((one) => [one.dag, one.missed])]);
    }
    if (!unhealthy.length) parts.push([`✓ ${total} streams healthy`, `${pages}streams`, []]);
  } else {
    parts.push([seen ? `▲ ${seen.problem}` : "Streams …", `${pages}streams`, []]);
  }
  const colours = { "●": dark ? "#ff8a80" : "#b3161b", "▲": dark ? "#e6ae4a" : "#8a4b00", "✓": dark ? "#57c878" : "#12703a" };
  const drawn = parts.map(([words, path, reasons]) =>
    element(
      "a",
      { key: words, href: place(path), style: { display: "flex", gap: "8px", alignItems: "baseline", flexWrap: "wrap" } },
      element("strong", { style: { color: colours[words[0]] } }, words),
      ...reasons.slice(0, 5).map(([name, why]) => element("span", { key: name, title: why, style: { opacity: 0.85 } }, name)),
      reasons.length > 5 ? element("span", { style: { opacity: 0.85 } }, `and ${reasons.length - 5} more`) : null,
    ),
  );
  return element(
    "div",
    {
      id: "sluice-tile",
      style: { display: "flex", gap: "4px 28px", flexWrap: "wrap", padding: "10px 14px", border: `1px solid ${dark ? "#3f3f46" : "#d4d4d8"}`, borderRadius: "8px" },
    },
    ...drawn,
  );
};
