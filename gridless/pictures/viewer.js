// Draws every canvas that has data-points as a cloud that can be turned (drag) and zoomed (wheel).
// Points: base64 of int16 x, y, z in thousandths, then uint8 r, g, b, size, 10 bytes each, little-endian.
(() => {
  "use strict";
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const canvas of document.querySelectorAll("canvas[data-points]")) {
    const bytes = Uint8Array.from(atob(canvas.dataset.points), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const count = bytes.length / 10;
    const xyz = new Float32Array(3 * count), colour = [], size = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < 3; k++) xyz[3 * i + k] = view.getInt16(10 * i + 2 * k, true) / 1000;
      colour.push(`rgb(${bytes[10 * i + 6]},${bytes[10 * i + 7]},${bytes[10 * i + 8]})`);
      size[i] = bytes[10 * i + 9];
    }
    const order = Array.from({ length: count }, (_, i) => i);
    const depth = new Float32Array(count), sx = new Float32Array(count), sy = new Float32Array(count);
    let turn = parseFloat(canvas.dataset.turn || "0.6"), tilt = parseFloat(canvas.dataset.tilt || "0.35");
    let zoom = 1, moving = !still && canvas.dataset.spin !== "no", seen = false;
    const pen = canvas.getContext("2d");
    const draw = () => {
      const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
      if (canvas.width !== Math.round(w * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio); }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, w, h);
      const ct = Math.cos(turn), st = Math.sin(turn), ci = Math.cos(tilt), si = Math.sin(tilt);
      const scale = 0.42 * Math.min(w, h) * zoom;
      for (let i = 0; i < count; i++) {
        const x = xyz[3 * i], y = xyz[3 * i + 1], z = xyz[3 * i + 2];
        const a = ct * x - st * y, b = st * x + ct * y;
        depth[i] = ci * b - si * z;
        const near = 1 / (1 + 0.18 * depth[i]);
        sx[i] = w / 2 + scale * a * near;
        sy[i] = h / 2 - scale * (si * b + ci * z) * near;
      }
      order.sort((p, q) => depth[q] - depth[p]);
      for (const i of order) {
        const r = 0.35 * size[i] * Math.sqrt(zoom) * (1 - 0.25 * depth[i]);
        pen.globalAlpha = Math.max(0.25, Math.min(1, 0.8 - 0.35 * depth[i]));
        pen.fillStyle = colour[i];
        pen.beginPath(); pen.arc(sx[i], sy[i], Math.max(0.4, r), 0, 6.2832); pen.fill();
      }
      pen.globalAlpha = 1;
    };
    const spin = () => { if (moving) { if (seen) { turn += 0.004; draw(); } requestAnimationFrame(spin); } };
    canvas.addEventListener("pointerdown", (e) => { moving = false; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (!e.buttons) return;
      turn -= 0.01 * e.movementX; tilt = Math.max(-1.57, Math.min(1.57, tilt + 0.01 * e.movementY)); draw();
    });
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); moving = false; zoom *= Math.exp(-0.001 * e.deltaY); draw(); }, { passive: false });
    new IntersectionObserver((entries) => { seen = entries[0].isIntersecting; }).observe(canvas);
    new ResizeObserver(draw).observe(canvas);
    draw(); spin();
  }
})();
