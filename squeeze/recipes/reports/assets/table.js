const MOST = 500;  // rows that are shown at once

// A table that sorts and filters. columns: {key, title, form}; choose: called with the row whose first cell is clicked.
function sortable(id, columns, rows, choose) {
  const element = $(id);
  let by = null, descending = false, words = "";
  const text = (row, column) => shown(row[column.key], column.form);
  element.innerHTML = `<input type="search" aria-label="Filter" placeholder="Filter"><span class="note" role="status"></span><div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr></tr></thead><tbody></tbody></table></div>`;
  const [input, note, head, body] = ["input", ".note", "thead tr", "tbody"].map(name => element.querySelector(name));

  function ordered() {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter(row => {
      const line = columns.map(column => text(row, column)).join(" ").toLowerCase();
      return wanted.every(word => line.includes(word));
    });
    if (!by) return found;
    const sign = descending ? -1 : 1, known = found.filter(row => isKnown(row[by.key]));
    known.sort((a, b) => sign * (by.form === "text" ? a[by.key].localeCompare(b[by.key]) : a[by.key] - b[by.key]));
    return [...known, ...found.filter(row => !isKnown(row[by.key]))];
  }
  function fill() {
    head.innerHTML = columns.map((column, i) => {
      const sort = column === by ? (descending ? "descending" : "ascending") : "none";
      return `<th scope="col" aria-sort="${sort}" class="${column.form === "text" ? "" : "n"}"><button type="button" data-column="${i}">${escaped(column.title)}</button></th>`;
    }).join("");
    const found = ordered();
    note.textContent = `${grouped(found.length)} of ${grouped(rows.length)}` + (found.length > MOST ? `; the first ${MOST} are shown` : "");
    body.replaceChildren(...found.slice(0, MOST).map(row => {
      const line = document.createElement("tr");
      line.dataset.name = row.name ?? "";
      line.innerHTML = columns.map((column, i) => {
        const cell = escaped(text(row, column));
        if (i === 0) return `<th scope="row">${choose ? `<button type="button" class="go">${cell}</button>` : cell}</th>`;
        return `<td class="${column.form === "text" ? "" : "n"}">${cell}</td>`;
      }).join("");
      if (choose) line.querySelector("button").addEventListener("click", () => choose(row));
      return line;
    }));
  }
  head.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    const column = columns[Number(button.dataset.column)];
    descending = by === column ? !descending : column.form !== "text" && column.better !== "less";
    by = column;
    fill();
    head.querySelectorAll("button")[columns.indexOf(column)].focus();
  });
  input.addEventListener("input", () => {
    words = input.value;
    fill();
  });
  fill();
}
