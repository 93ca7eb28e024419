"""What the network differentiates: each op is a folder with its contract, a reference and the fast backends."""
