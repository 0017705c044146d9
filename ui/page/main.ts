// The page of twillctl ui.
const app = document.getElementById("app")!;
app.textContent = "Twill";
