const root = document.currentScript.dataset.root;
const input = document.getElementById("search");
const found = document.getElementById("found");
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = words.length === 0 ? [] : index.filter(([heading, title]) => {
    const text = (heading + " " + title).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  found.replaceChildren(...hits.slice(0, 12).map(([heading, title, url]) => {
    const link = document.createElement("a");
    link.href = root + url;
    link.textContent = heading === title ? heading : heading + " – " + title;
    link.addEventListener("click", () => found.replaceChildren());
    const item = document.createElement("li");
    item.append(link);
    return item;
  }));
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { input.value = ""; found.replaceChildren(); }
  if (event.key === "Enter") { found.querySelector("a")?.click(); }
});
