"""Other libraries' interfaces over our own operations. Nothing else in the package imports them."""
