// Sorts the rows of a table by the column whose head was chosen, the largest first.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const value = (row) => row.cells[column].querySelector("data")?.value;
    const sort = () => {
      const rows = [...table.tBodies[0].rows];
      const isNumeric = rows.some((row) => value(row) !== undefined);
      const key = (row) => isNumeric ? Number(value(row) ?? -Infinity) : row.cells[column].textContent;
      const isUp = head.getAttribute("aria-sort") === "descending" || (!isNumeric && !head.hasAttribute("aria-sort"));
      const compare = (a, b) => a === b ? 0 : a < b ? -1 : 1;
      rows.sort((a, b) => (isUp ? 1 : -1) * compare(key(a), key(b)));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort();
    });
  });
}
