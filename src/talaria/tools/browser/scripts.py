"""What we run inside pages. A page can make it lie, so nothing depends on it but the page's own picture."""

SIZE = "() => [document.getElementsByTagName('*').length, (document.documentElement?.textContent ?? '').length]"

TITLE = "size => document.title.slice(0, size)"

BEGINNING = "size => (document.documentElement?.textContent ?? '').slice(0, size)"

SCROLL = """
sign => {
  let box = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  const scrolls = (one) => one.scrollHeight > one.clientHeight && /auto|scroll/.test(getComputedStyle(one).overflowY);
  while (box && !scrolls(box)) box = box.parentElement;
  box ??= document.scrollingElement;
  box.scrollBy({top: sign * box.clientHeight * 0.8, behavior: 'instant'});
  return [box.scrollTop, box.clientHeight, box.scrollHeight];
}
"""
"""What stands in the middle is moved by most of its height; answers where it is now, its height, and all there is."""
