"""The lines of a plan that follow one another, at once: of one small cloud on the CPU, of any clouds on the GPU."""
