// Functions that look at a rendered page. Loaded with evaluate, so the page's own policy for scripts stays in force.
(() => {
  const NEAR = 1.5; // CSS pixels: rounding of sub-pixel layout

  const name = (element) => {
    const text = (element.textContent || '').trim().replace(/\s+/g, ' ').slice(0, 60);
    const id = element.id ? '#' + element.id : '';
    const classes = [...element.classList].map((one) => '.' + one).join('');
    return `<${element.tagName.toLowerCase()}${id}${classes}> ${text}`;
  };

  const isShown = (element) => {
    if (!element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) return false;
    for (let one = element; one; one = one.parentElement) {
      const box = one.getBoundingClientRect();
      const style = getComputedStyle(one);
      const isCut = style.overflowX !== 'visible' || style.clipPath !== 'none' || style.clip !== 'auto';
      if (isCut && (box.width <= 1 || box.height <= 1)) return false; // for screen readers only
    }
    return true;
  };

  const scrolls = (element, axis) => ['auto', 'scroll'].includes(getComputedStyle(element)['overflow' + axis]);
  const cuts = (element, axis) => ['hidden', 'clip'].includes(getComputedStyle(element)['overflow' + axis]);
  const hasTitle = (element) => element.closest('[title]') !== null;

  // Text that its box cuts off or that sticks out of it, unless a person can scroll to it or read it in a title.
  const clippedTexts = () => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const parent = node.parentElement;
      if (!node.data.trim() || ['SCRIPT', 'STYLE', 'OPTION', 'NOSCRIPT', 'TEMPLATE'].includes(parent.tagName)) continue;
      if (parent.closest('svg') || !isShown(parent)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const rects = [...range.getClientRects()].filter((rect) => rect.width > 0);
      if (!rects.length) continue;
      const text = {
        left: Math.min(...rects.map((rect) => rect.left)), right: Math.max(...rects.map((rect) => rect.right)),
        top: Math.min(...rects.map((rect) => rect.top)), bottom: Math.max(...rects.map((rect) => rect.bottom)),
      };
      if (text.right < 0 || text.bottom + scrollY < 0) continue; // beside the page until it has the focus
      let freeX = false; let freeY = false;
      for (let box = parent; box && box !== document.documentElement; box = box.parentElement) {
        const rect = box.getBoundingClientRect();
        const isInline = getComputedStyle(box).display === 'inline';
        if (isInline) continue;
        freeX ||= scrolls(box, 'X'); freeY ||= scrolls(box, 'Y');
        const outX = text.right > rect.right + NEAR || text.left < rect.left - NEAR;
        const outY = text.bottom > rect.bottom + NEAR + 4 || text.top < rect.top - NEAR - 4;
        const isCell = ['TD', 'TH', 'LI', 'P', 'H1', 'H2', 'H3', 'DD', 'DT', 'BUTTON', 'A', 'SUMMARY'].includes(box.tagName);
        if (outX && !freeX && (cuts(box, 'X') || isCell || box === document.body) && !hasTitle(parent)) {
          found.push(`text out of the width of ${name(box)}: ${node.data.trim().slice(0, 60)}`); break;
        }
        if (outY && !freeY && cuts(box, 'Y') && !hasTitle(parent)) {
          found.push(`text out of the height of ${name(box)}: ${node.data.trim().slice(0, 60)}`); break;
        }
        if (freeX && freeY) break;
      }
    }
    return found.slice(0, 20);
  };

  // Boxes of shown text that lie over each other, in tables and forms, where a layout breaks first.
  const overlaps = () => {
    const cells = [...document.querySelectorAll('td, th, dt, dd, label, button, nav a')].filter(isShown);
    const boxes = cells.map((cell) => [cell, cell.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
    boxes.sort((one, other) => one[1].top - other[1].top);
    const found = [];
    for (let i = 0; i < boxes.length; i++) {
      for (let j = i + 1; j < boxes.length && boxes[j][1].top < boxes[i][1].bottom - 2; j++) {
        const [one, a] = boxes[i]; const [other, b] = boxes[j];
        if (one.contains(other) || other.contains(one)) continue;
        if (getComputedStyle(one).position === 'sticky' || getComputedStyle(other).position === 'sticky') continue;
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 2 && down > 2) found.push(`${name(one)} lies over ${name(other)}`);
      }
      if (found.length > 10) break;
    }
    return found;
  };

  const scrollsSideways = () => {
    const root = document.scrollingElement;
    if (root.scrollWidth <= root.clientWidth + 1) return [];
    const wide = [...document.body.querySelectorAll('*')].filter((element) => {
      if (!isShown(element) || element.getBoundingClientRect().right <= root.clientWidth + 1) return false;
      for (let one = element.parentElement; one; one = one.parentElement) {
        if (one !== root && one !== document.body && getComputedStyle(one).overflowX !== 'visible') return false;
      }
      return true;
    });
    return [`the page is ${root.scrollWidth} wide in ${root.clientWidth}: ${wide.slice(-3).map(name).join(' | ')}`];
  };

  const controls = () => {
    const all = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]');
    const groups = new Set();
    return [...all].filter((element) => {
      if (element.disabled || element.tabIndex < 0 || element.type === 'hidden' || !isShown(element)) return false;
      if (element.type !== 'radio') return true;
      const isFirst = !groups.has(element.name);
      groups.add(element.name);
      return isFirst || element.checked;
    });
  };

  // Note each element that gets the focus, and whether a person can see that it has it.
  const watchFocus = () => {
    window.checkedFocus = { reached: new Set(), invisible: [] };
    document.addEventListener('focusin', ({ target }) => {
      const style = getComputedStyle(target);
      const hasOutline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
      window.checkedFocus.reached.add(target.type === 'radio' ? target.name : target);
      if (!target.matches(':focus-visible') || !(hasOutline || style.boxShadow !== 'none')) {
        window.checkedFocus.invisible.push(`the focus cannot be seen on ${name(target)}`);
      }
    });
    return controls().length;
  };

  const focusProblems = () => {
    const { reached, invisible } = window.checkedFocus;
    const key = (element) => (element.type === 'radio' ? element.name : element);
    const missed = controls().filter((element) => !reached.has(key(element)));
    return [...missed.slice(0, 10).map((element) => `Tab does not reach ${name(element)}`), ...invisible.slice(0, 10)];
  };

  const headings = () => {
    const levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(isShown);
    const found = [];
    if (levels.filter((one) => one.tagName === 'H1').length !== 1) found.push('there is not exactly one h1');
    levels.reduce((before, one) => {
      const level = Number(one.tagName[1]);
      if (level > before + 1) found.push(`${name(one)} skips a level`);
      return level;
    }, 0);
    return found;
  };

  window.pageChecks = {
    layout: () => [...scrollsSideways(), ...clippedTexts(), ...overlaps(), ...headings()],
    watchFocus,
    focusProblems,
  };
})();
