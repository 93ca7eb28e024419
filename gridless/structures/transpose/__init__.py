"""Edges seen from the other side, CSR to CSR: a stable counting sort by source.

A backend's `transpose(splits, source, num_source, padding)` takes what `Edges` are made of and returns splits (S + 1)
int64 and, for each edge, its target (E) int32. Padding edges stay at the end and belong to no row.
"""
