// The stretch of time that all charts show, and how pointer, wheel and keys change it.

class View {
  constructor(last, onChange) {
    this.last = last;
    this.min = 0;
    this.max = last;
    this.onChange = onChange;
    this.queued = false;
  }

  set(min, max) {
    const span = Math.min(Math.max(max - min, this.last / 1e6), this.last);
    this.min = Math.min(Math.max(min, 0), this.last - span);
    this.max = this.min + span;
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.onChange();
    });
  }

  fit() {
    this.set(0, this.last);
  }

  zoom(factor, at = (this.min + this.max) / 2) {
    this.set(at - (at - this.min) * factor, at + (this.max - at) * factor);
  }

  pan(time) {
    const span = this.max - this.min;
    const min = Math.min(Math.max(this.min + time, 0), this.last - span);
    this.set(min, min + span);
  }

  show(start, end) {
    if (start < this.min) this.pan(start - this.min - (this.max - this.min) * 0.1);
    else if (end > this.max) this.pan(end - this.max + (this.max - this.min) * 0.1);
  }
}

// Drag and one finger pan, two fingers and wheel with Ctrl zoom, sideways wheel pans, double click zooms.
function steer(element, view) {
  const pointers = new Map();
  const timeAt = (clientX) => {
    const box = element.getBoundingClientRect();
    return view.min + ((clientX - box.left) / box.width) * (view.max - view.min);
  };
  element.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.clientX);
    const now = [...pointers.values()];
    const perPixel = (view.max - view.min) / element.clientWidth;
    if (now.length === 1) view.pan((before[0] - now[0]) * perPixel);
    else {
      const spread = (xs) => Math.max(Math.abs(xs[0] - xs[1]), 1);
      view.zoom(spread(before) / spread(now), timeAt((now[0] + now[1]) / 2));
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    element.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  element.addEventListener("dblclick", (event) => view.zoom(event.shiftKey ? 2 : 0.5, timeAt(event.clientX)));
  element.addEventListener(
    "wheel",
    (event) => {
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(event.deltaY * 0.003), timeAt(event.clientX));
      else if (sideways) view.pan((sideways * (view.max - view.min)) / element.clientWidth);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
}
