// Draws every canvas with data-points or data-triangles so that it can be turned (drag), zoomed (wheel, two fingers).
// Points: base64 of int16 x, y, z in thousandths, then uint8 r, g, b, size, 10 bytes each, little-endian.
// Triangles: base64 of int16 x, y, z in thousandths of each of three corners, 18 bytes each.
(() => {
  "use strict";
  // From so many points on WebGL draws them, where there is one; browsers give few of its contexts to a page.
  const LARGE = 20000;
  // While a large cloud moves, as many of its points are drawn as take this many milliseconds.
  const PACE = 30;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

  function decoded(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  // Half the width and half the height of what turns, so that it fits whichever way it is turned. Few points are
  // outside: the view was scaled to most of them.
  function extent(view, count, stride) {
    let wide = 1e-3, tall = 1e-3;
    for (let i = 0; i < count; i++) {
      const [x, y, z] = [0, 2, 4].map((k) => view.getInt16(stride * i + k, true) / 1000);
      if (Math.max(Math.abs(x), Math.abs(y), Math.abs(z)) > 1.001) continue;
      wide = Math.max(wide, Math.hypot(x, y)); tall = Math.max(tall, Math.abs(z));
    }
    return [wide, tall];
  }

  // draw(look, w, h, ratio, moving) by WebGL, or null without it.
  function large(canvas, bytes, count) {
    const gl = canvas.getContext("webgl", { antialias: false, alpha: true, preserveDrawingBuffer: true });
    if (!gl) return null;
    const compiled = (kind, text) => {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text); gl.compileShader(shader);
      return shader;
    };
    const program = gl.createProgram();
    gl.attachShader(program, compiled(gl.VERTEX_SHADER, `
      attribute vec3 place; attribute vec4 paint; uniform vec4 turn; uniform vec2 scale; uniform float size; varying vec4 colour;
      void main() {
        vec3 p = place / 1000.0;
        float a = turn.x * p.x - turn.y * p.y, b = turn.y * p.x + turn.x * p.y, depth = turn.z * b - turn.w * p.z;
        float near = 1.0 / max(1.0 + 0.18 * depth, 0.05);
        gl_Position = vec4(scale * near * vec2(a, turn.w * b + turn.z * p.z), clamp(depth / 50.0, -1.0, 1.0), 1.0);
        gl_PointSize = max(1.0, paint.w * size * (1.0 - 0.25 * clamp(depth, -2.0, 2.0)));
        colour = vec4(paint.rgb / 255.0, clamp(0.85 - 0.3 * depth, 0.35, 1.0));
      }`));
    gl.attachShader(program, compiled(gl.FRAGMENT_SHADER, `
      precision mediump float; varying vec4 colour;
      void main() {
        if (length(gl_PointCoord - 0.5) > 0.5) discard;
        gl_FragColor = vec4(colour.rgb * colour.a, colour.a);
      }`));
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
    gl.useProgram(program);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, bytes, gl.STATIC_DRAW);
    for (const [name, parts, kind, at] of [["place", 3, gl.SHORT, 0], ["paint", 4, gl.UNSIGNED_BYTE, 6]]) {
      const slot = gl.getAttribLocation(program, name);
      gl.enableVertexAttribArray(slot); gl.vertexAttribPointer(slot, parts, kind, false, 10, at);
    }
    gl.enable(gl.DEPTH_TEST); gl.clearColor(0, 0, 0, 0);
    const uniform = (name) => gl.getUniformLocation(program, name);
    const [turn, scale, size] = ["turn", "scale", "size"].map(uniform), pixel = new Uint8Array(4);
    // Points get smaller where there are many.
    const fine = (shown) => Math.max(0.35, Math.min(1, Math.sqrt(60000 / shown)));
    let part = count;
    return (look, w, h, ratio, moving) => {
      const before = performance.now();
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
      gl.uniform4f(turn, Math.cos(look.turn), Math.sin(look.turn), Math.cos(look.tilt), Math.sin(look.tilt));
      gl.uniform2f(scale, 2 * look.scale / w, 2 * look.scale / h);
      const shown = moving ? part : count;
      gl.uniform1f(size, 0.7 * ratio * fine(shown) * Math.sqrt(look.zoom));
      gl.drawArrays(gl.POINTS, 0, shown);
      if (!moving) return;
      // Reading a pixel waits until all is drawn.
      gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
      const rate = shown / Math.max(performance.now() - before, 1);
      part = Math.max(LARGE, Math.min(count, Math.round(0.5 * part + 0.5 * rate * PACE)));
      canvas.dataset.drawn = shown;
    };
  }

  // draw(look, w, h, ratio) of points or triangles on a plain canvas, the far ones first.
  function small(canvas, view, count, mesh) {
    const stride = mesh ? 6 : 10, things = mesh ? count / 3 : count;
    const xyz = new Float32Array(3 * count), colour = [], size = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < 3; k++) xyz[3 * i + k] = view.getInt16(stride * i + 2 * k, true) / 1000;
      if (mesh) continue;
      colour.push(`rgb(${view.getUint8(10 * i + 6)},${view.getUint8(10 * i + 7)},${view.getUint8(10 * i + 8)})`);
      size[i] = view.getUint8(10 * i + 9);
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
    const sx = new Float32Array(count), sy = new Float32Array(count), pen = canvas.getContext("2d");
    return ({ turn, tilt, scale, zoom }, w, h, ratio) => {
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, w, h);
      const ct = Math.cos(turn), st = Math.sin(turn), ci = Math.cos(tilt), si = Math.sin(tilt);
      for (let i = 0; i < count; i++) {
        const x = xyz[3 * i], y = xyz[3 * i + 1], z = xyz[3 * i + 2];
        const a = ct * x - st * y, b = st * x + ct * y;
        depth[i] = ci * b - si * z;
        const near = 1 / Math.max(1 + 0.18 * depth[i], 0.05);
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
          const r = 0.35 * size[i] * Math.sqrt(zoom) * Math.max(0.2, 1 - 0.25 * depth[i]);
          pen.globalAlpha = Math.max(0.25, Math.min(1, 0.8 - 0.35 * depth[i]));
          pen.arc(sx[i], sy[i], Math.max(0.4, r), 0, 6.2832);
        }
        pen.fill();
      }
      pen.globalAlpha = 1;
    };
  }

  for (const canvas of document.querySelectorAll("canvas[data-points], canvas[data-triangles]")) {
    const mesh = canvas.dataset.triangles !== undefined, stride = mesh ? 6 : 10;
    const bytes = decoded(mesh ? canvas.dataset.triangles : canvas.dataset.points), view = new DataView(bytes.buffer);
    const count = bytes.length / stride, [wide, tall] = extent(view, count, stride);
    const quick = !mesh && count > LARGE ? large(canvas, bytes, count) : null;
    const paint = quick || small(canvas, view, count, mesh);
    canvas.dataset.by = quick ? "webgl" : "canvas";
    const look = { turn: parseFloat(canvas.dataset.turn || "0.6"), tilt: parseFloat(canvas.dataset.tilt || "0.35"), zoom: 1, scale: 1 };
    const first = look.tilt;
    let moving = !still && canvas.dataset.spin !== "no", seen = false, rest = 0;
    const draw = (fast = false) => {
      const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
      const [across, down] = [Math.round(w * ratio), Math.round(h * ratio)];
      if (canvas.width !== across || canvas.height !== down) { canvas.width = across; canvas.height = down; }
      look.scale = 0.42 * look.zoom * Math.min(w / wide, h / (tall * Math.cos(first) + wide * Math.abs(Math.sin(first))));
      paint(look, w, h, ratio, fast);
      clearTimeout(rest);
      // All points are drawn once the cloud is at rest.
      if (fast && quick) rest = setTimeout(() => draw(), 150);
    };
    const spin = () => {
      // Where not all points are drawn in time, the cloud rests, and shows them all.
      if (!moving || Number(canvas.dataset.drawn) < count) return;
      if (seen) { look.turn += 0.004; draw(true); }
      requestAnimationFrame(spin);
    };
    const zoom = (factor) => { look.zoom = Math.max(0.05, Math.min(200, look.zoom * factor)); draw(true); };
    const fingers = new Map();
    canvas.addEventListener("pointerdown", (e) => { moving = false; fingers.set(e.pointerId, e); canvas.setPointerCapture(e.pointerId); });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => fingers.delete(e.pointerId));
    canvas.addEventListener("pointermove", (e) => {
      if (!fingers.has(e.pointerId)) return;
      const before = fingers.get(e.pointerId), [dx, dy] = [e.clientX - before.clientX, e.clientY - before.clientY];
      const other = [...fingers.values()].find((f) => f.pointerId !== e.pointerId);
      fingers.set(e.pointerId, e);
      if (other) {
        const apart = (f) => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY) || 1;
        zoom(apart(e) / apart(before));
      } else {
        look.turn -= 0.01 * dx; look.tilt = Math.max(-1.57, Math.min(1.57, look.tilt + 0.01 * dy)); draw(true);
      }
    });
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); moving = false; zoom(Math.exp(-0.001 * e.deltaY)); }, { passive: false });
    new IntersectionObserver((entries) => { seen = entries[0].isIntersecting; }).observe(canvas);
    new ResizeObserver(() => draw()).observe(canvas);
    draw(); spin();
  }
})();
