const root = document.currentScript.dataset.root;
const input = document.getElementById("search");
const found = document.getElementById("found");

// rank tells how well a section fits the words: 2 by its heading, 1 by its page's title, 0 by its text, -1 not.
function rank(words, [heading, title, , text]) {
  const all = [text, title, heading].map((part) => part.toLowerCase());
  for (let i = 2; i >= 0; i--) {
    if (words.every((word) => all.slice(i).some((part) => part.includes(word)))) { return i; }
  }
  return -1;
}

input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = words.length === 0 ? [] : index.map((entry) => [rank(words, entry), entry]).filter(([fit]) => fit >= 0);
  hits.sort((a, b) => b[0] - a[0]);
  found.replaceChildren(...hits.slice(0, 15).map(([, [heading, title, url]]) => {
    const link = document.createElement("a");
    link.href = root + url;
    link.textContent = heading === title ? heading : title + ": " + heading;
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
