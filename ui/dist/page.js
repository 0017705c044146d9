var t=document.getElementById("app");t.textContent="Twill";
