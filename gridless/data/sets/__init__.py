"""Published data sets, and two that are generated. One file per data set."""
