// Draws every canvas with data-points or data-triangles so that it can be turned (drag) and zoomed (wheel).
// Points: base64 of int16 x, y, z in thousandths, then uint8 r, g, b, size, 10 bytes each, little-endian.
// Triangles: base64 of int16 x, y, z in thousandths of each of three corners, 18 bytes each.
(() => {
  "use strict";
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const canvas of document.querySelectorAll("canvas[data-points], canvas[data-triangles]")) {
    const mesh = canvas.dataset.triangles !== undefined, stride = mesh ? 6 : 10;
    const bytes = Uint8Array.from(atob(mesh ? canvas.dataset.triangles : canvas.dataset.points), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const count = bytes.length / stride, things = mesh ? count / 3 : count;
    const xyz = new Float32Array(3 * count), colour = [], size = new Uint8Array(count);
    let wide = 1e-3, tall = 1e-3;
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < 3; k++) xyz[3 * i + k] = view.getInt16(stride * i + 2 * k, true) / 1000;
      wide = Math.max(wide, Math.hypot(xyz[3 * i], xyz[3 * i + 1])); tall = Math.max(tall, Math.abs(xyz[3 * i + 2]));
      if (mesh) continue;
      colour.push(`rgb(${bytes[10 * i + 6]},${bytes[10 * i + 7]},${bytes[10 * i + 8]})`);
      size[i] = bytes[10 * i + 9];
    }
    for (let t = 0; mesh && t < things; t++) {
      const [ax, ay, az, bx, by, bz, cx, cy, cz] = xyz.subarray(9 * t, 9 * t + 9);
      const [ux, uy, uz, vx, vy, vz] = [bx - ax, by - ay, bz - az, cx - ax, cy - ay, cz - az];
      const [nx, ny, nz] = [uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx];
      const light = 0.45 + 0.55 * Math.abs(0.35 * nx - 0.45 * ny + 0.82 * nz) / (Math.hypot(nx, ny, nz) || 1);
      colour.push(`rgb(${Math.round(82 * light)},${Math.round(140 * light)},${Math.round(220 * light)})`);
    }
    const order = Array.from({ length: things }, (_, i) => i);
    const depth = new Float32Array(count), far = mesh ? new Float32Array(things) : depth;
    const sx = new Float32Array(count), sy = new Float32Array(count);
    let turn = parseFloat(canvas.dataset.turn || "0.6"), tilt = parseFloat(canvas.dataset.tilt || "0.35");
    const first = tilt;
    let zoom = 1, moving = !still && canvas.dataset.spin !== "no", seen = false;
    const pen = canvas.getContext("2d");
    const draw = () => {
      const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
      const [across, down] = [Math.round(w * ratio), Math.round(h * ratio)];
      if (canvas.width !== across || canvas.height !== down) { canvas.width = across; canvas.height = down; }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, w, h);
      const ct = Math.cos(turn), st = Math.sin(turn), ci = Math.cos(tilt), si = Math.sin(tilt);
      // Whichever way it is turned it fits.
      const scale = 0.42 * zoom * Math.min(w / wide, h / (tall * Math.cos(first) + wide * Math.abs(Math.sin(first))));
      for (let i = 0; i < count; i++) {
        const x = xyz[3 * i], y = xyz[3 * i + 1], z = xyz[3 * i + 2];
        const a = ct * x - st * y, b = st * x + ct * y;
        depth[i] = ci * b - si * z;
        const near = 1 / (1 + 0.18 * depth[i]);
        sx[i] = w / 2 + scale * a * near;
        sy[i] = h / 2 - scale * (si * b + ci * z) * near;
      }
      for (let t = 0; mesh && t < things; t++) far[t] = depth[3 * t] + depth[3 * t + 1] + depth[3 * t + 2];
      order.sort((p, q) => far[q] - far[p]);
      for (const i of order) {
        pen.fillStyle = colour[i];
        pen.beginPath();
        if (mesh) {
          for (let k = 0; k < 3; k++) pen.lineTo(sx[3 * i + k], sy[3 * i + k]);
          pen.closePath(); pen.strokeStyle = colour[i]; pen.lineWidth = 0.6; pen.stroke();
        } else {
          const r = 0.35 * size[i] * Math.sqrt(zoom) * (1 - 0.25 * depth[i]);
          pen.globalAlpha = Math.max(0.25, Math.min(1, 0.8 - 0.35 * depth[i]));
          pen.arc(sx[i], sy[i], Math.max(0.4, r), 0, 6.2832);
        }
        pen.fill();
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
