// Scroll the menu to the entry of this page. The theme does so from 1,220 pixels on; see site.css.
const menu = document.querySelector(".md-sidebar--primary .md-sidebar__scrollwrap");
const here = menu && [...menu.querySelectorAll("a.md-nav__link--active")].pop();
if (here) {
  const above = here.getBoundingClientRect().top - menu.getBoundingClientRect().top;
  menu.scrollTop += above - menu.clientHeight / 2;
}
