"use strict";
for (const tool of document.querySelectorAll(".tool")) {
  tool.hidden = false;
  const wide = tool.parentElement.querySelector(".wide");
  tool.querySelector("[data-zoom]").addEventListener("input", (event) => {
    wide.style.width = `${100 * event.target.value}%`;
  });
}
for (const table of document.querySelectorAll("table[data-sort]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.value ?? cell.textContent;
        const number = Number.parseFloat(text);
        return Number.isNaN(number) ? text : number;
      };
      const body = table.tBodies[0];
      const order = (a, b) => {
        const [one, other] = [value(a), value(b)];
        return typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === "number" ? -1 : 1;
      };
      const rows = [...body.rows].sort(order);
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
