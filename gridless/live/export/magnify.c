/* The rectangle of the cells of a grid that hold `least` or more (of all cells, where none does), magnified to the whole
   grid about its middle, the ratio of its sides kept; between cells linearly, zeros outside. */
APART void magnify(float *restrict to, const float *restrict grid, int height, int width, int channels, float least) {
    int left = width, right = -1, top = height, bottom = -1, x, y, c, u, v;
    double across, down, share;
    for (y = 0; y < height; y++) {
        for (x = 0; x < width; x++) {
            int held = 0;
            for (c = 0; c < channels; c++) held |= grid[(y * width + x) * channels + c] >= least;
            if (!held) continue;
            if (x < left) left = x;
            if (x > right) right = x;
            if (y < top) top = y;
            bottom = y;
        }
    }
    if (right < 0) left = top = 0, right = width - 1, bottom = height - 1;
    across = (double)(right - left + 1) / width, down = (double)(bottom - top + 1) / height;
    share = across > down ? across : down;
    for (y = 0; y < height; y++) {
        double at_y = 0.5 * (top + bottom) + share * (y - 0.5 * (height - 1));
        int line = (int)at_y - ((int)at_y > at_y);
        for (x = 0; x < width; x++, to += channels) {
            double at_x = 0.5 * (left + right) + share * (x - 0.5 * (width - 1));
            int column = (int)at_x - ((int)at_x > at_x);
            for (c = 0; c < channels; c++) {
                double total = 0.0;
                for (v = line < 0 ? 0 : line; v < line + 2 && v < height; v++) {
                    double beside = 1.0 - (at_y > v ? at_y - v : v - at_y);
                    for (u = column < 0 ? 0 : column; u < column + 2 && u < width; u++)
                        total += grid[(v * width + u) * channels + c] * ((1.0 - (at_x > u ? at_x - u : u - at_x)) * beside);
                }
                to[c] = (float)total;
            }
        }
    }
}
