// Draws the pictures of a report from the JSON in their elements, and lets tables be sorted.
function sortable(table) {
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    if (!table.tHead.rows[0].cells[column].classList.contains("number")) return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const compare = (one, other) => typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one, column), key(other, column)];
        if (a === null || b === null) return (a === null) - (b === null);
        return (down ? -1 : 1) * compare(a, b);
      });
      body.append(...rows);
    });
  });
}

document.documentElement.classList.add("js");
const KINDS = { plot: Plot, bars: Bars, timeline: Timeline };
const pictures = [...document.querySelectorAll(".chart")]
  .map((holder) => [holder, JSON.parse(holder.querySelector("script").textContent)]);
for (const [, { kind, series, categories }] of pictures) {
  if (kind === "plot") keepLooks(series.map((one) => one.label));
  if (kind === "bars" && series.length === 1) keepLooks(categories);
}
for (const [holder, spec] of pictures) new KINDS[spec.kind](holder, spec);
document.querySelectorAll("table").forEach(sortable);
// The keyboard stops at a box only if there is something to scroll.
const boxes = new ResizeObserver((changes) => {
  for (const { target } of changes) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
document.querySelectorAll(".scroll").forEach((box) => boxes.observe(box));
for (const part of document.querySelectorAll("[data-tip]")) {
  part.addEventListener("pointermove", (event) => showTip(part.dataset.tip, event.clientX, event.clientY));
  part.addEventListener("pointerleave", hideTip);
}
const download = document.getElementById("download");
download.addEventListener("click", () => {
  const content = document.getElementById("data").textContent;
  download.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
});
