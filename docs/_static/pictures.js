// A drawing that a phone shows small is opened alone, where it can be drawn larger, by a touch.
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a");
    link.href = picture.src;
    link.title = "the picture alone";
    picture.replaceWith(link);
    link.append(picture);
  }
});
